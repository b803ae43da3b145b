"""Rewrites the JSON bodies of requests for vLLM.

Adds the model's defaults, stops and one BOS, and translates fields that vLLM would refuse or silently ignore.
"""

from typing import Any

from rayllm.config.engine_arguments import request_fields
from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES
from rayllm.core.errors import CONTEXT_LENGTH_EXCEEDED, RequestError
from rayllm.core.hosted_tools import PATHS as WITH_HOSTED_TOOLS
from rayllm.core.hosted_tools import refuse_hosted_tools
from rayllm.engine.guided.worker_messages import KEY as ENVELOPE
from rayllm.engine.middleware.anthropic_content import with_texts_of_documents
from rayllm.engine.middleware.content_parts import check_media
from rayllm.engine.middleware.deprecated_fields import replace_deprecated
from rayllm.engine.middleware.openai_fields import with_known_fields
from rayllm.engine.middleware.request_limits import check_limits
from rayllm.engine.middleware.responses_input import with_readable_items
from rayllm.engine.middleware.tool_choices import with_allowed_tools
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.structured_output.constraint import constrained_by

Body = dict[str, Any]

# Endpoints that generate text, and their field for stop texts.
_STOPS = {CHAT: "stop", CHAT_BATCH: "stop", COMPLETIONS: "stop", RESPONSES: "stop", MESSAGES: "stop_sequences"}
# Aliases: a default for one must not override another in the request.
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

# vLLM's fields by which a client may disturb others, or make a replica connect to other hosts.
GUARDED_FIELDS = ("kv_transfer_params", "ec_transfer_params", "priority")

# Names by which chat templates are told whether to think.
_SWITCHES = ("thinking", "enable_thinking")
_BACKEND = "nvext.guided_decoding_backend"


def rewrite_request(path: str, body: Body, plan: RequestPlan) -> Body:
    """`body` without nulls, with deprecated fields replaced and the plan applied; the original is left unchanged.

    Fields of a wrong type are left for vLLM to refuse.

    Raises:
        RequestError: the request asks for something unsupported.
    """
    check_limits(path, body)
    check_media(body, plan.modalities)
    # To clients, null is the default. To vLLM it is an invalid value, or another one than the default.
    rewritten = {name: value for name, value in body.items() if value is not None}
    _check_guarded(rewritten, plan)
    rewritten = replace_deprecated(rewritten)
    _check_backend(path, rewritten, plan)
    if path in WITH_HOSTED_TOOLS:
        refuse_hosted_tools(path, rewritten, plan.has_tool_server)
    if path in (CHAT, CHAT_BATCH, RESPONSES):
        rewritten = with_allowed_tools(with_known_fields(rewritten))
    if path in (MESSAGES, COUNT_TOKENS):
        rewritten = with_texts_of_documents(rewritten)
    _switch_thinking(path, rewritten, plan)
    if path == RESPONSES:
        _check_stateless(rewritten)
        rewritten = with_readable_items(rewritten)
    if path in _STOPS:
        _apply(plan, path, rewritten)
    return rewritten


def _apply(plan: RequestPlan, path: str, body: Body) -> None:
    _add_defaults(body, path, plan)
    _add_stops(body, _STOPS[path], plan)
    if body.get("temperature") == 0 and body.get("n", 1) != 1 and not body.get("use_beam_search"):
        # The likeliest token each time, of which vLLM makes one answer only.
        body |= {"temperature": 1, "top_k": 1}
    if path in (CHAT, CHAT_BATCH) and plan.owns_template and body.get("add_special_tokens") is True:
        # The tokenizer adds the BOS, so the template must not.
        kwargs = body.get("chat_template_kwargs") or {}
        if isinstance(kwargs, dict):
            body["chat_template_kwargs"] = {**kwargs, "omit_bos": plan.tokenizer_adds_bos}
    if path == COMPLETIONS:
        _check_echo(body)
        _check_token_ids(body, plan.context_length)
        if "prompt" in body and body.get("add_special_tokens") is not False:
            body["prompt"] = with_one_bos(body["prompt"], plan)


def _switch_thinking(path: str, body: Body, plan: RequestPlan) -> None:
    """Tell the chat template whether to think, by both names that templates have for it.

    vLLM tells it one name, and at Anthropic's path only since 0.31, and only not to think.
    """
    fields = {MESSAGES: ("thinking", "type"), COUNT_TOKENS: ("thinking", "type"), RESPONSES: ("reasoning", "effort")}
    outer, inner = fields.get(path, ("", "reasoning_effort"))
    holder = body.get(outer, {}) if outer else body
    effort = holder.get(inner) if isinstance(holder, dict) else None
    budget = holder.get("budget_tokens") if isinstance(holder, dict) else None
    if effort == "enabled" and not plan.limits_thinking and isinstance(budget, int) and budget > 0:
        # vLLM refuses a budget that the engine cannot keep.
        body["thinking"] = {"type": "adaptive"}
    kwargs = body.get("chat_template_kwargs", {})
    if plan.has_template and isinstance(effort, str) and isinstance(kwargs, dict) and not {*_SWITCHES} & {*kwargs}:
        thinks = effort not in ("none", "disabled")
        body["chat_template_kwargs"] = dict.fromkeys(_SWITCHES, thinks) | kwargs


def _check_token_ids(body: Body, context_length: int) -> None:
    """Refuse token ids that fill the context, of which vLLM says no more than that `max_tokens` is 0."""
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) and any(isinstance(item, list) for item in prompt) else [prompt]
    longest = max((len(ids) for ids in prompts if isinstance(ids, list)), default=0)
    if 0 < context_length <= longest and "truncate_prompt_tokens" not in body:
        message = f"This model's maximum context length is {context_length} tokens. Your prompt has {longest} tokens."
        raise RequestError(message, "prompt", CONTEXT_LENGTH_EXCEEDED)


def _check_guarded(body: Body, plan: RequestPlan) -> None:
    """Refuse fields that the model's file does not allow, also within vLLM's extra arguments."""
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and ENVELOPE in extra:
        # A forged envelope would reach the Python code of guided decoding backends in the engine's workers.
        extra = body["vllm_xargs"] = {name: value for name, value in extra.items() if name != ENVELOPE}
    for name in GUARDED_FIELDS:
        if name in plan.allowed_fields:
            continue
        hint = f"`allowed_request_fields: [{name}]` in its file would let it"
        if name in body:
            raise RequestError(f"This model takes no `{name}` from requests; {hint}.", name)
        if isinstance(extra, dict) and name in extra:
            raise RequestError(f"This model takes no `vllm_xargs.{name}` from requests; {hint}.", "vllm_xargs")


def _check_stateless(body: Body) -> None:
    """Refuse what needs stored responses: vLLM would ignore it, or keep responses in one replica for ever."""
    if body.get("store") is True:
        raise RequestError("This service stores no responses; leave `store` out, or send false.", "store")
    for name in ("previous_response_id", "conversation"):
        if name in body:
            message = f"This service stores no responses; send the whole conversation in `input` instead of `{name}`."
            raise RequestError(message, name)
    if body.get("background"):
        raise RequestError("This service does not answer in the background; leave `background` out.", "background")


def _check_echo(body: Body) -> None:
    """Refuse `echo` where vLLM's beam search would fail on `echo` at its end."""
    prompt = body.get("prompt")
    texts = prompt if isinstance(prompt, list) else [prompt]
    if not body.get("echo") or not body.get("use_beam_search") or not texts:
        return
    if len(texts) > 1 or not isinstance(texts[0], str) or "logprobs" in body:
        raise RequestError("With beam search, `echo` takes one text and no `logprobs`.", "echo")


def _check_backend(path: str, body: Body, plan: RequestPlan) -> None:
    """Refuse a custom guided decoding backend that vLLM would ignore."""
    nvext = body.get("nvext") or {}
    if not isinstance(nvext, dict):
        raise RequestError("nvext must be an object.", "nvext")
    if nvext.get("guided_decoding_backend") is None:
        return
    if path not in (CHAT, COMPLETIONS):
        raise RequestError(f"Guided decoding backends work with {CHAT} and {COMPLETIONS} only.", _BACKEND)
    if not plan.takes_backends:
        raise RequestError("This model has no guided decoding backends (`guided_decoding.backends_dir`).", _BACKEND)


def _add_defaults(body: Body, path: str, plan: RequestPlan) -> None:
    fields = request_fields(path)
    for name, value in plan.defaults.items():
        if name in LENGTHS:
            if not any(other in body for other in LENGTHS):
                body[next(field for field in (name, *LENGTHS) if field in fields)] = value
        elif name in fields:
            body.setdefault(name, value)


def _add_stops(body: Body, field: str, plan: RequestPlan) -> None:
    stop = body.get(field, [])
    own = [stop] if isinstance(stop, str) else stop
    # A constraint determines where the answer ends; a stop text of the model's file could only cut the answer.
    if plan.stop and isinstance(own, list) and constrained_by(body) is None:
        body[field] = [*own, *(text for text in plan.stop if text not in own)]


def with_one_bos(prompt: Any, plan: RequestPlan) -> Any:
    """Text prompts with exactly one BOS once tokenized; token ids are left unchanged."""
    if not plan.bos:
        return prompt
    if isinstance(prompt, list):
        return [with_one_bos(item, plan) if isinstance(item, str) else item for item in prompt]
    if not isinstance(prompt, str):
        return prompt
    start = 0
    while prompt.startswith(plan.bos, start):
        start += len(plan.bos)
    return prompt[start:] if plan.tokenizer_adds_bos else plan.bos + prompt[start:]
