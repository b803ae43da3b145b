"""A model's prompts without its engine: the same template, special tokens and adapters' settings as when it serves."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rayllm.batch.rows import Row
from rayllm.config import ModelConfig
from rayllm.engine.adapters.setup import adapter_store, with_generation
from rayllm.engine.middleware.request_rewriting import with_one_bos
from rayllm.engine.request_plan import RequestPlan, plan_requests
from rayllm.errors import ConfigError, RequestError
from rayllm.lora import AdapterLimits, AdapterName, BaseModules, adapter_of
from rayllm.prompt import PromptError, render
from rayllm.sources import LoggedProgress, fetch, node_cache

_PROBE = "rayllm probes how this template takes content"
# Kinds of parts that are texts, each with the key that holds it; as vLLM takes them.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
_IMAGES = ("image", "image_url", "input_image", "image_pil")


class Prompter:
    """The tokenizer of a model, and what its configuration makes of messages and texts.

    Args:
        model: the model; its tokenizer's files are fetched where they are elsewhere.

    Raises:
        SourceError: the tokenizer cannot be had.
        ConfigError: it is none that can be used without the engine.
    """

    def __init__(self, model: ModelConfig) -> None:
        self._model = model
        loading = model.model_loading_config
        source = loading.tokenizer_source or model.source
        folder = fetch(source, model.model_id, loading.allow_pickle_weights, weights=False).folder
        self.tokenizer = _tokenizer(str(folder), model)
        self._plan = self._planned(model)
        self._plans: dict[str, RequestPlan] = {}
        self._by_parts: dict[str, bool] = {}

    def prompt(self, row: Row) -> str:
        """The prompt that a row's `messages` become.

        Raises:
            RequestError: they cannot be rendered.
        """
        plan = self._plan_of(row)
        template = plan.chat_template or self._own_template(bool(row.get("tools")))
        if template is None:
            raise RequestError(
                "the model has no chat template; give rows a `prompt` instead of `messages`, or give the model a "
                "`prompt_format` or a `chat_template`."
            )
        by_parts = self._takes_parts(template, plan)
        try:
            return render(
                template,
                [_message(message, by_parts) for message in _listed(row["messages"])],
                tools=row.get("tools"),
                add_generation_prompt=_or(row.get("add_generation_prompt"), True),
                continue_final_message=_or(row.get("continue_final_message"), False),
                **{
                    **self._special_tokens,
                    **self._model.chat_template_kwargs,
                    **(row.get("chat_template_kwargs") or {}),
                },
            )
        except PromptError as error:
            raise RequestError(f"messages: {error}") from None

    def tokens(self, row: Row) -> list[int]:
        """Token ids of a row's `prompt`; as a completion's, with exactly one BOS, where no template wrote it."""
        if row.get("is_rendered"):
            return self._encode(row["prompt"], False)
        return self._encode(with_one_bos(row["prompt"], self._plan_of(row)), True)

    def text(self, tokens: Sequence[int], sampling: Mapping[str, Any]) -> str:
        """The text of generated tokens."""
        skip = _or(sampling.get("skip_special_tokens"), True)
        return str(self.tokenizer.decode(tokens, skip_special_tokens=skip))

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _planned(self, model: ModelConfig) -> RequestPlan:
        return plan_requests(model, self.tokenizer, lambda: self._own_template(False))

    def _own_template(self, with_tools: bool) -> str | None:
        own = self.tokenizer.chat_template
        if isinstance(own, dict):
            return own.get("tool_use", own.get("default")) if with_tools else own.get("default")
        return str(own) if own else None

    @cached_property
    def _special_tokens(self) -> dict[str, Any]:
        return {name: token for name, token in self.tokenizer.special_tokens_map.items() if isinstance(token, str)}

    def _takes_parts(self, template: str, plan: RequestPlan) -> bool:
        """Whether a template goes through the parts of a message's content itself, as vLLM finds out too."""
        if plan.owns_template:
            return False
        said = self._model.engine_kwargs.get("chat_template_content_format", "auto")
        if said != "auto":
            return bool(said == "openai")
        if template not in self._by_parts:
            probe = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
            try:
                rendered = render(template, probe, **self._special_tokens)
            except PromptError:
                rendered = ""
            # Else it has written the list as a whole.
            is_list = "'text'" in rendered or '"text"' in rendered
            self._by_parts[template] = _PROBE in rendered and not is_list
        return self._by_parts[template]

    def _plan_of(self, row: Row) -> RequestPlan:
        name = adapter_of(self._model, row.get("model"))
        if name is None:
            return self._plan
        if str(name) not in self._plans:
            self._plans[str(name)] = self._adapters_plan(name)
        return self._plans[str(name)]

    def _adapters_plan(self, name: AdapterName) -> RequestPlan:
        """What the adapter's own settings mean; its weights are the engine's to look into."""
        files = adapter_store(self._model, AdapterLimits(sys.maxsize, BaseModules.of(())), LoggedProgress).have(name)
        node_cache().release(files.entry)
        return self._plan if files.generation is None else self._planned(with_generation(self._model, files.generation))


def _tokenizer(folder: str, model: ModelConfig) -> Any:
    from transformers import AutoTokenizer

    mode = model.engine_kwargs.get("tokenizer_mode", "auto")
    if mode not in ("auto", "hf", "slow"):
        raise ConfigError(
            f"model `{model.model_id}`: a tokenizer of mode `{mode}` works inside the engine alone; "
            "use RequestProcessorConfig, or rows with `prompt` and need_tokenize=False, need_detokenize=False."
        )
    trust = bool(model.engine_kwargs.get("trust_remote_code", False))
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust, use_fast=mode != "slow")
    except (OSError, ValueError) as error:
        told = " ".join(str(error).split())[:500]
        raise ConfigError(f"model `{model.model_id}`: its tokenizer cannot be read: {told}") from None


def _listed(messages: Any) -> list[Any]:
    """Messages as a list; a text is one message of the user's."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if hasattr(messages, "tolist"):
        # Rows of a dataset hold arrays.
        messages = messages.tolist()
    if not isinstance(messages, list) or not messages:
        raise RequestError("`messages` must be a text, or a list of messages that is not empty.")
    return messages


def _message(message: Any, by_parts: bool) -> Any:
    """A message with its content as the template takes it: parts, or their texts in one."""
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
        raise RequestError("the chat template takes texts alone; images need a template that goes through `content`.")
    return {**message, "content": "\n".join(part["text"] for part in parts if part["text"])}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise RequestError(f"messages: a part of the content must be a mapping, not {type(part).__name__}.")
    kind = part.get("type") or ("text" if "text" in part else None)
    if kind in _IMAGES:
        return {"type": "image"}
    if kind not in _TEXTS:
        raise RequestError(f"messages: a part of the content must be a text or an image, not {kind!r}.")
    words = part.get(_TEXTS[kind]) or ""
    if not isinstance(words, str):
        raise RequestError(f"messages: the text of a part must be a text, not {type(words).__name__}.")
    return {"type": "text", "text": words}


def _or(value: Any, default: bool) -> bool:
    return default if value is None else bool(value)
