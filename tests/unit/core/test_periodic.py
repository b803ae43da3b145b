"""Calls that are repeated in a thread."""

from __future__ import annotations

from queue import SimpleQueue
from threading import get_ident

from rayllm.core.periodic import repeated


def test_a_function_is_called_again_and_again_until_the_block_ends() -> None:
    calls: SimpleQueue[int] = SimpleQueue()
    with repeated(lambda: calls.put(get_ident()), 0.001):
        threads = {calls.get(timeout=60) for _ in range(3)}
    assert get_ident() not in threads
    assert len(threads) == 1


def test_a_block_may_end_before_the_first_call() -> None:
    calls: list[None] = []
    with repeated(lambda: calls.append(None), 3600):
        pass
    assert calls == []
