"""Settings of vLLM objects that vary by request, where vLLM has no option for it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any


def vary_templates(server: Any, choose: Callable[[], str | None]) -> None:
    """Let `choose` give the chat template of each request, and where it gives None, the application's stay."""
    for serving in {id(value): value for value in vars(server.state)["_state"].values()}.values():
        if "chat_template" in getattr(serving, "__dict__", {}):
            _vary(serving, "chat_template", lambda own: choose() or own)


def stop_at(engine: Any, token_ids: Callable[[], Collection[int]]) -> None:
    """Let these tokens end the answers of every endpoint, as if the model's generation config named them.

    Args:
        engine: an AsyncLLM.
        token_ids: gives the tokens for the request that is being taken in.
    """

    def with_stops(fields: dict[str, Any]) -> dict[str, Any]:
        own = fields.get("eos_token_id")
        known = [own] if isinstance(own, int) else list(own or ())
        return {**fields, "eos_token_id": list(dict.fromkeys([*known, *token_ids()]))}

    _vary(engine.input_processor, "generation_config_fields", with_stops)


def _vary(holder: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Make an attribute of one object go through `change` whenever it is read."""
    own = getattr(holder, name)
    kind = type(holder)
    varied = type(kind.__name__, (kind,), {name: property(lambda self: change(own))})
    del holder.__dict__[name]
    holder.__class__ = varied
