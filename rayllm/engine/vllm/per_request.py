"""Varies settings of vLLM objects by request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any


def vary_templates(server: Any, choose: Callable[[], str | None]) -> None:
    """Use the chat template that `choose` returns for the current request, or for None the application's own."""
    for serving in {id(value): value for value in vars(server.state)["_state"].values()}.values():
        if "chat_template" in getattr(serving, "__dict__", {}):
            _vary(serving, "chat_template", lambda own: choose() or own)


def stop_at(engine: Any, token_ids: Callable[[], Collection[int]]) -> None:
    """Add stop tokens to every request, in addition to those of the model's generation config."""

    def with_stops(fields: dict[str, Any]) -> dict[str, Any]:
        own = fields.get("eos_token_id")
        token_list = [own] if isinstance(own, int) else list(own or ())
        return {**fields, "eos_token_id": list(dict.fromkeys([*token_list, *token_ids()]))}

    _vary(engine.input_processor, "generation_config_fields", with_stops)


def _vary(holder: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Pass the value of an object's attribute through `change` on every read."""
    own = getattr(holder, name)
    kind = type(holder)
    varied = type(kind.__name__, (kind,), {name: property(lambda self: change(own))})
    del holder.__dict__[name]
    holder.__class__ = varied
