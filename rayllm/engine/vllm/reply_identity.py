"""Makes the ids and times in a reply reproducible for a replica that continues the reply."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from rayllm.core.token_log import TokenLog

# vLLM's packages that make the ids and the creation times of replies.
_PACKAGES = ("vllm.entrypoints.", "vllm.tool_parsers.")


def make_reproducible(token_log: Callable[[], TokenLog | None]) -> None:
    """Have vLLM take the ids and times in a reply from the reply's log, where there is a log.

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
