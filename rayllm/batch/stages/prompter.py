"""Render and tokenize prompts outside the engine, with the same template, BOS and adapter settings as in serving."""

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rayllm.batch.rows import Row
from rayllm.config import ModelConfig
from rayllm.core.errors import ConfigError, RequestError
from rayllm.engine.adapters.setup import adapter_store, with_generation
from rayllm.engine.middleware.request_rewriting import with_one_bos
from rayllm.engine.request_plan import RequestPlan, plan_requests
from rayllm.lora import Adapter, resolve_adapter
from rayllm.prompt import PromptError, render
from rayllm.sources import LoggedProgress, fetch, node_cache

_PROBE = "rayllm probes how this template takes content"
# Type of a content part that is text → key with the text, as in vLLM.
_TEXT_PARTS = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    "refusal": "refusal",
    "thinking": "thinking",
}
_IMAGE_PARTS = ("image", "image_url", "input_image", "image_pil")


class Prompter:
    """Renders, tokenizes and detokenizes for a model. Raises SourceError or ConfigError without a usable tokenizer."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        loading = model.model_loading_config
        source = loading.tokenizer_source or model.source
        folder = fetch(source, model.model_id, loading.allow_pickle_weights, weights=False).folder
        self.tokenizer = _tokenizer(str(folder), model)
        self._plan = self._plan_for(model)
        self._adapter_plans: dict[Adapter, RequestPlan] = {}
        self._iterates_parts: dict[str, bool] = {}

    def prompt(self, row: Row) -> str:
        """Render a row's `messages` to a prompt. Raises RequestError if the messages cannot be rendered."""
        plan = self._row_plan(row)
        template = plan.chat_template or self._tokenizer_template(bool(row.get("tools")))
        if template is None:
            raise RequestError(
                "the model has no chat template; give rows a `prompt` instead of `messages`, or give the model a "
                "`prompt_format` or a `chat_template`."
            )
        by_parts = self._takes_parts(template, plan)
        try:
            return render(
                template,
                [_message(message, by_parts) for message in _message_list(row["messages"])],
                tools=row.get("tools"),
                add_generation_prompt=_bool(row.get("add_generation_prompt"), True),
                continue_final_message=_bool(row.get("continue_final_message"), False),
                **{
                    **self._special_tokens,
                    **self._model.chat_template_kwargs,
                    **(row.get("chat_template_kwargs") or {}),
                },
            )
        except PromptError as error:
            raise RequestError(f"messages: {error}") from None

    def tokens(self, row: Row) -> list[int]:
        """Tokenize a row's `prompt`. A prompt without a template gets exactly one BOS, as in a completion."""
        if row.get("is_rendered"):
            return self._encode(row["prompt"], False)
        return self._encode(with_one_bos(row["prompt"], self._row_plan(row)), True)

    def text(self, tokens: Sequence[int], sampling: Mapping[str, Any]) -> str:
        skip = _bool(sampling.get("skip_special_tokens"), True)
        return str(self.tokenizer.decode(tokens, skip_special_tokens=skip))

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _plan_for(self, model: ModelConfig) -> RequestPlan:
        return plan_requests(model, self.tokenizer, lambda: self._tokenizer_template(False))

    def _tokenizer_template(self, with_tools: bool) -> str | None:
        template = self.tokenizer.chat_template
        if isinstance(template, dict):
            default = template.get("default")
            return template.get("tool_use", default) if with_tools else default
        return str(template) if template else None

    @cached_property
    def _special_tokens(self) -> dict[str, Any]:
        return {name: token for name, token in self.tokenizer.special_tokens_map.items() if isinstance(token, str)}

    def _takes_parts(self, template: str, plan: RequestPlan) -> bool:
        """Whether a template iterates over the parts of a message's content. vLLM uses the same test."""
        if plan.owns_template:
            return False
        content_format = self._model.engine_kwargs.get("chat_template_content_format", "auto")
        if content_format != "auto":
            return bool(content_format == "openai")
        if template not in self._iterates_parts:
            probe = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
            try:
                rendered = render(template, probe, **self._special_tokens)
            except PromptError:
                rendered = ""
            # A template for strings prints the list as it is.
            is_list = "'text'" in rendered or '"text"' in rendered
            self._iterates_parts[template] = _PROBE in rendered and not is_list
        return self._iterates_parts[template]

    def _row_plan(self, row: Row) -> RequestPlan:
        adapter = resolve_adapter(self._model, row.get("model"))
        if adapter is None:
            return self._plan
        if adapter not in self._adapter_plans:
            # With the adapter's own settings. The engine checks the adapter's weights.
            files = adapter_store(self._model, sys.maxsize, LoggedProgress).fetch(adapter)
            node_cache().release(files.entry)
            own = files.generation
            plan = self._plan if own is None else self._plan_for(with_generation(self._model, own))
            self._adapter_plans[adapter] = plan
        return self._adapter_plans[adapter]


def _tokenizer(folder: str, model: ModelConfig) -> Any:
    from transformers import AutoTokenizer

    mode = model.engine_kwargs.get("tokenizer_mode", "auto")
    if mode not in ("auto", "hf", "slow"):
        raise ConfigError(
            f"model `{model.model_id}`: a tokenizer of mode `{mode}` only works inside the engine; "
            "use RequestProcessorConfig, or rows with `prompt` and need_tokenize=False, need_detokenize=False."
        )
    trust = bool(model.engine_kwargs.get("trust_remote_code", False))
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust, use_fast=mode != "slow")
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())[:500]
        raise ConfigError(f"model `{model.model_id}`: the tokenizer cannot be read: {problem}") from None


def _message_list(messages: Any) -> list[Any]:
    """Messages as a list; a string is one user message."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if hasattr(messages, "tolist"):  # a NumPy array, from a dataset's column
        messages = messages.tolist()
    if not isinstance(messages, list) or not messages:
        raise RequestError("`messages` must be a text, or a list of messages that is not empty.")
    return messages


def _message(message: Any, by_parts: bool) -> Any:
    """A message with the content that the template takes: parts, or their joined text."""
    if not isinstance(message, Mapping) or (content := message.get("content")) is None:
        return message
    if hasattr(content, "tolist"):
        content = content.tolist()
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]} if by_parts else message
    if not isinstance(content, list | tuple):
        raise RequestError(f"messages: `content` must be a text or a list of parts, not {type(content).__name__}.")
    parts = [_part(part) for part in content]
    if by_parts:
        return {**message, "content": parts}
    if any(part["type"] != "text" for part in parts):
        raise RequestError("the chat template accepts only text; images need a template that iterates over `content`.")
    return {**message, "content": "\n".join(part["text"] for part in parts if part["text"])}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise RequestError(f"messages: a part of the content must be a mapping, not {type(part).__name__}.")
    kind = part.get("type") or ("text" if "text" in part else None)
    if kind in _IMAGE_PARTS:
        return {"type": "image"}
    if kind not in _TEXT_PARTS:
        raise RequestError(f"messages: a part of the content must be a text or an image, not {kind!r}.")
    text = part.get(_TEXT_PARTS[kind]) or ""
    if not isinstance(text, str):
        raise RequestError(f"messages: the text of a part must be a string, not {type(text).__name__}.")
    return {"type": "text", "text": text}


def _bool(value: Any, default: bool) -> bool:
    return default if value is None else bool(value)
