"""The length of the context: prompts that are too long for it, and answers that would be.

vLLM refuses a prompt by what `max_tokens` leaves, and says that the prompt alone were too long. Here, a prompt is
refused for its own length, and `max_tokens` is clipped or refused once the prompt's length is known.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES

_GENERATING = (CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES)
_CHARACTERS_PER_TOKEN = 4

# vLLM's tokenizers read the whole text, and vLLM keeps one token more than the context has. Keeping a few times as many
# costs little, and says how long most prompts are that are too long.
_COUNTED_CONTEXTS = 4


def keep_to_context(
    engine: Any, max_tokens: str | None, path: Callable[[], str], requested_tokens: Callable[[], int]
) -> None:
    """Check the lengths of all requests to an engine, the AsyncLLM. Call once per process.

    Args:
        max_tokens: `clip` or `refuse`; None clips on Anthropic's path, whose clients ask for more than they need.
        path: the path of the current request.
        requested_tokens: the tokens that the current request asks for; 0 for what is left.
    """

    def is_clipped() -> bool:
        return max_tokens == "clip" or (max_tokens is None and path() == MESSAGES)

    # vLLM's own message names no field of Anthropic's.
    _measure_prompts_alone(lambda: is_clipped() or path() == MESSAGES, lambda: int(path() in _GENERATING))
    config, processor = engine.model_config, engine.input_processor
    original = processor.process_inputs

    def process_inputs(request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
        if config.runner_type == "generate" and token_ids is not None:
            # A beam search asks for one token after the other, with prompts that grow.
            is_cut = not params.max_tokens or params.max_tokens >= config.max_model_len - len(token_ids)
            asked = requested_tokens() if is_cut and not is_clipped() else 0
            check_length(len(token_ids), asked, config.max_model_len, path())
        return original(request_id, prompt, params, *args, **kwargs)

    processor.process_inputs = process_inputs


def check_length(prompt: int, asked: int, limit: int, path: str) -> None:
    """Check the tokens of a prompt and those asked for an answer, 0 for what is left, against the context.

    Raises:
        VLLMValidationError: they are more than the context has, or leave no room for an answer.
    """
    from vllm.exceptions import VLLMValidationError

    if prompt >= limit:
        raise VLLMValidationError(_sentence(prompt, "tokens", limit), parameter="input_tokens", value=prompt)
    if prompt + asked <= limit:
        return
    if path == MESSAGES:
        message = (
            f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > {limit}, decrease input length "
            "or `max_tokens` and try again"
        )
        raise VLLMValidationError(message, parameter="max_tokens")
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt + asked} tokens "
        f"({prompt} in the prompt, {asked} in the answer). Please reduce the length of either."
    )
    raise VLLMValidationError(message, parameter="input_tokens")


def say_too_long(error: BaseException, path: str, limit: int) -> str | None:
    """The message for clients of `path` if the prompt alone is too long for the context, else None."""
    size, counted = getattr(error, "value", None), getattr(error, "parameter", None)
    if counted not in ("input_tokens", "input_text") or not isinstance(size, int):
        return None
    if path == MESSAGES:
        # Claude Code reads both numbers, to know how much of the conversation to leave out.
        tokens = size if counted == "input_tokens" else max(limit, size // _CHARACTERS_PER_TOKEN)
        return f"prompt is too long: {tokens} tokens > {limit - 1} maximum"
    return _sentence(size, "tokens" if counted == "input_tokens" else "characters", limit)


def _sentence(size: int, unit: str, limit: int) -> str:
    return f"This model's maximum context length is {limit} tokens. However, your prompt has {size} {unit}."


def _measure_prompts_alone(admits_any_answer: Callable[[], bool], answer_tokens: Callable[[], int]) -> None:
    from vllm.renderers.params import TokenizeParams

    check, encode = TokenizeParams.__post_init__, TokenizeParams.get_encode_kwargs

    def leave_out_answer(params: Any) -> None:
        # A prompt that is truncated is truncated to what the answer leaves.
        if params.truncate_prompt_tokens is None and params.max_total_tokens is not None:
            object.__setattr__(params, "max_output_tokens", answer_tokens())

    def post_init(self: Any) -> None:
        if admits_any_answer():
            leave_out_answer(self)
        check(self)
        leave_out_answer(self)

    def encode_kwargs(self: Any) -> dict[str, Any]:
        kwargs: dict[str, Any] = encode(self)
        if self.truncate_prompt_tokens is None and kwargs.get("max_length"):
            kwargs["max_length"] *= _COUNTED_CONTEXTS
        return kwargs

    TokenizeParams.__post_init__ = post_init
    TokenizeParams.get_encode_kwargs = encode_kwargs
