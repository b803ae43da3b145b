"""Lets the model answer freely, then raises its voice by a wheel's function and signs with the request's user."""

import json
from contextvars import ContextVar

from vllm.entrypoints.openai.protocol import ChatCompletionResponse, ErrorResponse

user = ContextVar("user", default="nobody")


async def set_custom_guided_decoding_parameters(request):
    user.set(request.user)


async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    return None


async def get_guided_decoding_constrained_generator(response, raw_request):
    from my_dep import shout

    if isinstance(response, ErrorResponse):
        return response
    if isinstance(response, ChatCompletionResponse):
        for choice in response.choices:
            choice.message.content = shout(choice.message.content) + " -- " + user.get()
        return response
    return changed(response, shout)


async def changed(events, shout):
    async for event in events:
        if event.startswith("data: {"):
            chunk = json.loads(event[6:])
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    choice["delta"]["content"] = shout(choice["delta"]["content"])
                if choice["finish_reason"]:
                    choice["delta"]["content"] = (choice["delta"].get("content") or "") + " -- " + user.get()
            event = "data: " + json.dumps(chunk) + "\n\n"
        yield event
