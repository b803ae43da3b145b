"""The request plan of a model: what the model's configuration adds to each request."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rayllm.config import ModelConfig
from rayllm.config.paths import read_template
from rayllm.prompt import compile_template


@dataclass(frozen=True)
class RequestPlan:
    """What the model's configuration adds to each request.

    Attributes:
        chat_template: passed to vLLM; None keeps the model's own.
        owns_template: whether the template is compiled from a `prompt_format`.
        stop: stop texts.
        stop_token_ids: stop tokens.
        defaults: values of fields that a request leaves out.
        bos: the beginning-of-sequence text, exactly once in each prompt; "" for none.
        tokenizer_adds_bos: whether the tokenizer adds `bos`.
        takes_backends: whether requests may name a custom guided decoding backend.
        allowed_fields: the GUARDED_FIELDS that clients may send.
        has_tool_server: whether vLLM runs some tools itself.
        context_length: in tokens; 0 if it is not known.
        modalities: what the model's prompts may contain; empty if it is not known.
        has_template: whether a Jinja template renders conversations, and takes variables.
        limits_thinking: whether the engine ends reasoning after a budget of tokens.
    """

    chat_template: str | None = None
    owns_template: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    bos: str = ""
    tokenizer_adds_bos: bool = False
    takes_backends: bool = False
    allowed_fields: tuple[str, ...] = ()
    has_tool_server: bool = False
    context_length: int = 0
    modalities: tuple[str, ...] = ()
    has_template: bool = False
    limits_thinking: bool = False


def plan_requests(
    model: ModelConfig, tokenizer: Any, own_template: Callable[[], str | None] = lambda: None
) -> RequestPlan:
    """The request plan of `model`.

    Args:
        tokenizer: of HuggingFace; without one, all stops stay texts.
        own_template: returns the model's own chat template for requests without tools.
    """
    generation = model.generation_config
    texts, ids = _split_stops(generation.stopping_sequences, tokenizer)
    adds_bos = _adds_bos(tokenizer)
    prompt_format = generation.prompt_format
    bos = prompt_format.bos if prompt_format else ""
    if not bos and adds_bos and tokenizer:
        # Mistral's own tokenizer has the id but not the text; it supports no prompt_format.
        bos = getattr(tokenizer, "bos_token", None) or ""
    template = compile_template(prompt_format, bos=bos) if prompt_format else _template_of(model, own_template)
    return RequestPlan(
        chat_template=template,
        owns_template=prompt_format is not None,
        stop=texts,
        stop_token_ids=tuple(dict.fromkeys((*generation.stopping_tokens, *ids))),
        defaults=dict(generation.generate_kwargs),
        bos=bos,
        tokenizer_adds_bos=adds_bos,
        allowed_fields=model.allowed_request_fields,
        has_tool_server=bool(model.engine_kwargs.get("tool_server")),
    )


def _split_stops(stops: Iterable[str], tokenizer: Any) -> tuple[tuple[str, ...], list[int]]:
    """Split stops into texts and the ids of special tokens.

    vLLM looks for stop texts in detokenized text, which lacks special tokens. Ordinary words stay texts: several tokens
    may spell a word.
    """
    texts, ids = list[str](), list[int]()
    for stop in stops:
        encoded = tokenizer.encode(stop, add_special_tokens=False) if tokenizer else []
        if tokenizer and len(encoded) == 1 and not tokenizer.decode(encoded, skip_special_tokens=True):
            ids.append(encoded[0])
        else:
            texts.append(stop)
    return tuple(texts), ids


def _adds_bos(tokenizer: Any) -> bool:
    if tokenizer is None or tokenizer.bos_token_id is None:
        return False
    return bool(tokenizer.encode("a")[:1] == [tokenizer.bos_token_id])


def _template_of(model: ModelConfig, own_template: Callable[[], str | None]) -> str | None:
    """The configured chat template combined with the template for tools; None keeps the model's own."""
    plain = read_template(model.chat_template)
    tools = read_template(model.tool_calling.chat_template if model.tool_calling else None)
    if tools is None:
        return plain
    if plain is None:
        plain = own_template()
    return tools if plain is None else "{%- if tools -%}" + tools + "{%- else -%}" + plain + "{%- endif -%}"
