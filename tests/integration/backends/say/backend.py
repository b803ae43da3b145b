"""Answers with the text in `nvext.say`, which it keeps in a context variable."""

from contextvars import ContextVar

import torch
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest

text = ContextVar("text")


async def set_custom_guided_decoding_parameters(request):
    text.set(request.model_extra["nvext"]["say"])


class Say:
    def __init__(self, tokenizer):
        self.ids = tokenizer.encode(text.get(), add_special_tokens=False) + [tokenizer.eos_token_id]
        self.count = 0

    def __call__(self, input_ids, scores):
        mask = torch.full_like(scores, float("-inf"))
        mask[self.ids[min(self.count, len(self.ids) - 1)]] = 0.0
        scores.add_(mask)
        self.count += 1
        return scores


async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    assert isinstance(request, (ChatCompletionRequest, CompletionRequest))
    return Say(tokenizer)
