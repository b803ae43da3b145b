"""Model families: their prompt formats, and vLLM's parsers for their tool calls and reasoning."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from rayllm.config.base import Frozen


class Family(Frozen):
    """A family of models, to which a model belongs by its id, or else by its chat template.

    Attributes:
        names: pattern of the models' ids.
        types: the models' `model_type`s; empty is any.
        template: texts that are all in the models' chat templates.
        tool_parser: vLLM's name of the parser.
        reasoning_parser: vLLM's name of the parser.
        prompt_format: None if the models' own template is as good.
    """

    name: str
    names: str | None = None
    types: tuple[str, ...] = ()
    template: tuple[str, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    prompt_format: dict[str, Any] | None = None
    stopping_sequences: tuple[str, ...] = ()

    def matches_id(self, model_id: str, model_type: str) -> bool:
        """Whether a model belongs to the family by its id."""
        if self.names is None or (self.types and model_type and model_type not in self.types):
            return False
        return re.search(self.names, model_id.rpartition("/")[2], re.IGNORECASE) is not None

    def matches_template(self, chat_template: str) -> bool:
        """Whether a model belongs to the family by its chat template."""
        return bool(self.template) and all(text in chat_template for text in self.template)


@cache
def families() -> tuple[Family, ...]:
    """All families; the first match wins."""
    raw = yaml.safe_load(files("rayllm.plan.authoring").joinpath("data/families.yaml").read_text(encoding="utf-8"))
    return tuple(map(Family.model_validate, raw))


def find_family(model_id: str, model_type: str, chat_template: str | None) -> Family | None:
    """Find the family of a model by its id, or else by its chat template; "" is an unknown type."""
    by_id = [family for family in families() if family.matches_id(model_id, model_type)]
    by_template = [family for family in families() if family.matches_template(chat_template or "")]
    return next(iter([*by_id, *by_template]), None)
