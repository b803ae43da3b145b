"""Ids and times in a reply that another replica can reproduce, should it have to continue the reply."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from rayllm.core.stream_journal import StreamJournal

# The packages of vLLM that make ids, and say when a reply was created.
_PACKAGES = ("vllm.entrypoints.", "vllm.tool_parsers.")


def make_reproducible(journal: Callable[[], StreamJournal | None]) -> None:
    """Have vLLM take ids and times from the journal of the current request, if its reply is recorded.

    Call it once, after vLLM's application was built.
    """
    from vllm.utils import random_uuid

    def make_id() -> str:
        recorded = journal()
        if recorded is None:
            return str(random_uuid())
        seed = f"{recorded.seed}/{recorded.next_number()}"
        return hashlib.blake2b(seed.encode(), digest_size=8).hexdigest()

    def now() -> float:
        recorded = journal()
        return time.time() if recorded is None else recorded.created

    clock = SimpleNamespace(**{**vars(time), "time": now})
    for name, module in list(sys.modules.items()):
        if not name.startswith(_PACKAGES):
            continue
        if getattr(module, "random_uuid", None) is random_uuid:
            module.random_uuid = make_id  # type: ignore[attr-defined]
        if getattr(module, "time", None) is time:
            module.time = clock  # type: ignore[attr-defined]
