"""Families of models: how they are prompted, and how their tool calls and their reasoning are read."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from rayllm.config.base import Frozen


class Family(Frozen):
    """What models of one descent share.

    `names` is a pattern within their ids, `types` the `model_type`s that they have, `template` texts that stand in
    their chat templates. Parsers are vLLM's names. `prompt_format` is None where the model's own template is as good
    or better.
    """

    name: str
    names: str | None = None
    types: tuple[str, ...] = ()
    template: tuple[str, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    prompt_format: dict[str, Any] | None = None
    stopping_sequences: tuple[str, ...] = ()

    def is_named(self, model_id: str, model_type: str) -> bool:
        """Whether a model of that id belongs to it."""
        if self.names is None or (self.types and model_type and model_type not in self.types):
            return False
        return re.search(self.names, model_id.rpartition("/")[2], re.IGNORECASE) is not None

    def has_template(self, chat_template: str) -> bool:
        """Whether a chat template is of its kind."""
        return bool(self.template) and all(text in chat_template for text in self.template)


@cache
def families() -> tuple[Family, ...]:
    """All that are known; the first that fits counts."""
    raw = yaml.safe_load(files("rayllm.authoring").joinpath("data/families.yaml").read_text(encoding="utf-8"))
    return tuple(map(Family.model_validate, raw))


def find_family(model_id: str, model_type: str, chat_template: str | None) -> Family | None:
    """The family of a model, by its id, else by its chat template; None where none is known.

    Args:
        model_id: on the hub, or any other.
        model_type: of its config.json; empty where that is not known.
        chat_template: its own; None where it has none.
    """
    named = [family for family in families() if family.is_named(model_id, model_type)]
    alike = [family for family in families() if family.has_template(chat_template or "")]
    return next(iter([*named, *alike]), None)
