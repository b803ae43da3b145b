"""Varies by request what vLLM sets once: chat templates, stop tokens, and the ids and times in replies."""

import hashlib
import sys
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

from rayllm.core.token_log import TokenLog

# Where vLLM makes the ids and the creation times of replies.
_PACKAGES = ("vllm.entrypoints.", "vllm.tool_parsers.", "vllm.renderers.chat_utils")


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


def make_reproducible(token_log: Callable[[], TokenLog | None]) -> None:
    """Have vLLM take ids and times from the log of the current reply, if any, as another replica could do again.

    Call once, after vLLM's application was built.
    """
    from vllm.utils import random_uuid

    def make_id() -> str:
        log = token_log()
        if log is None:
            return str(random_uuid())
        seed = f"{log.seed}/{log.next_number()}"
        return hashlib.blake2b(seed.encode(), digest_size=8).hexdigest()

    def now() -> float:
        log = token_log()
        return time.time() if log is None else log.created

    clock = SimpleNamespace(**{**vars(time), "time": now})
    for name, module in list(sys.modules.items()):
        if not name.startswith(_PACKAGES):
            continue
        if getattr(module, "random_uuid", None) is random_uuid:
            module.random_uuid = make_id  # type: ignore[attr-defined]
        if getattr(module, "time", None) is time:
            module.time = clock  # type: ignore[attr-defined]
