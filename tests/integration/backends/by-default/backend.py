"""A default backend: answers with the text in `user` where that begins with `say:`, and leaves all others alone."""

import torch


class Say:
    def __init__(self, text, tokenizer):
        self.ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    def __call__(self, output_ids, scores):
        mask = torch.full_like(scores, float("-inf"))
        mask[self.ids[min(len(output_ids), len(self.ids) - 1)]] = 0.0
        return scores + mask


async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    user = request.user or ""
    return Say(user.removeprefix("say:"), tokenizer) if user.startswith("say:") else None
