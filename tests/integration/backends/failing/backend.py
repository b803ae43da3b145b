"""Fails where `nvext.where` says."""


async def set_custom_guided_decoding_parameters(request):
    if request.model_extra["nvext"]["where"] == "preparing":
        raise ValueError("a secret of the backend")


async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    where = request.model_extra["nvext"]["where"]
    if where == "making":
        raise ValueError("a secret of the backend")

    def process(input_ids, scores):
        if where == "running" and len(input_ids) == 3:
            raise ValueError("a secret of the backend")
        return scores

    return process


async def get_guided_decoding_constrained_generator(response, raw_request):
    if raw_request.headers.get("x-session-id") == "fail":
        raise ValueError("a secret of the backend")
    return response
