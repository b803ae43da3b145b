from typing import List, Optional, Union

import torch
from transformers import PreTrainedTokenizer
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from vllm.sampling_params import LogitsProcessor

RESPONSE = "Custom decoding test"


class SingleLetterLogitsProcessor:
    '''
    Sample Logits Processor that always outputs a hardcoded
    esponse (`RESPONSE`), no matter the input
    '''

    def __init__(self, tokenizer: PreTrainedTokenizer):
        self.tokenizer = tokenizer
        self.token_ids = tokenizer.encode(RESPONSE)
        self.eos_id = tokenizer.eos_token_id
        self.state = 0

    def __call__(self, input_ids: Union[List[int], torch.LongTensor], scores: torch.FloatTensor) -> torch.FloatTensor:

        mask = torch.full_like(scores, float("-inf"))

        if self.state < len(self.token_ids):
            token_idx = self.token_ids[self.state]
        else:
            token_idx = self.eos_id
        # Allow only a single token to be output
        mask[token_idx] = 0.0

        # The `scores` tensor *must* also be modified in-place
        scores.add_(mask)
        self.state += 1

        return scores


async def get_custom_guided_decoding_logits_processor(
    request: Union[CompletionRequest, ChatCompletionRequest], tokenizer: PreTrainedTokenizer
) -> Optional[LogitsProcessor]:
    '''
    The `backend.py` file must contain a function with
    the name `get_custom_guided_decoding_logits_processor`
    with this exact signature. It must take in as input
    the `request` and the `tokenizer` with the above types.
    The return type must be `Optional[LogitsProcessor]`
    '''
    return SingleLetterLogitsProcessor(tokenizer)
