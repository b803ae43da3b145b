"""What is known of a model before it is configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rayllm.authoring.family import Family, find_family
from rayllm.authoring.template import FILES, chat_template, missing_stops
from rayllm.config import HubSource, ModelConfig
from rayllm.sizing.architecture import UnknownArchitectureError
from rayllm.sizing.measure import Measured, look, measured

Task = Literal["embed", "score", "classify"]

# Folders of sentence-transformers, which are made for embeddings, hold it.
_SENTENCES = "modules.json"


@dataclass(frozen=True)
class Subject:
    """A model that files are to be written for.

    `measured` is None where its memory cannot be told, and `unmeasured` says why; `heads` are its attention
    heads, where its config.json says so; `family` is None where none is
    known; `template` is its own chat template; `stops` are texts that end a turn and that its own files forget;
    `task` is None for models that generate, and where that is not known; `is_gated` where the hub asks who downloads;
    `is_seen` where its files could be read.
    """

    model: ModelConfig
    measured: Measured | None = None
    unmeasured: str = ""
    heads: int | None = None
    family: Family | None = None
    template: str | None = None
    stops: tuple[str, ...] = ()
    task: Task | None = None
    is_gated: bool = False
    is_seen: bool = True

    @property
    def context(self) -> int | None:
        """Tokens that it was made for, where that is known."""
        return self.measured.architecture.context if self.measured else None


def study(model: ModelConfig) -> Subject:
    """Look at a model where it lies.

    Raises:
        UnreachableError: nobody answers there.
        SourceError, ConfigError: it refuses, or holds no model.
    """
    inspected, is_outline = look(model.source, FILES)
    config, template = inspected.config, chat_template(inspected.texts)
    sized, why = _measured_or_why(inspected, is_outline)
    return Subject(
        model=model,
        measured=sized,
        unmeasured=why,
        heads=_heads(config),
        family=find_family(_name(model), str(config.get("model_type", "")), template),
        template=template,
        stops=missing_stops(inspected.texts, config),
        task=_task(config, _SENTENCES in inspected.paths),
        is_gated=inspected.is_gated,
        is_seen=not is_outline,
    )


def unseen(model: ModelConfig, why: str) -> Subject:
    """A model of which only the name is known.

    Args:
        model: the model.
        why: nobody could be asked.
    """
    return Subject(model, unmeasured=why, family=find_family(_name(model), "", None), is_seen=False)


def _name(model: ModelConfig) -> str:
    """The name that says most of its family: that of the hub's repository, however it is called here."""
    return model.source.repo_id if isinstance(model.source, HubSource) else model.model_id


def _measured_or_why(inspected: Any, is_outline: bool) -> tuple[Measured | None, str]:
    try:
        return measured(inspected, is_outline), ""
    except UnknownArchitectureError as error:
        return None, error.message


def _heads(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads") if isinstance(text, Mapping) else None
    return heads if isinstance(heads, int) else None


def _task(config: Mapping[str, Any], is_for_sentences: bool) -> Task | None:
    names = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith("ForSequenceClassification") for name in names):
        return "score" if len(config.get("id2label") or {"0": ""}) == 1 else "classify"
    is_bare = bool(names) and all(name.endswith("Model") for name in names)
    return "embed" if is_for_sentences or is_bare else None
