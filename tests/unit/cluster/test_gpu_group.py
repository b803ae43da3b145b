"""Engines that share a GPU start one after another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rayllm.cluster.gpu_group import start_in_turn


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [(("0",), ("0",), True), (("0", "1"), ("1",), True), (("0",), ("1",), False), ((), (), False)],
)
async def test_a_start_waits_for_those_on_its_gpus(
    cache_folder: Path, first: tuple[str, ...], second: tuple[str, ...], waits: bool
) -> None:
    async def start() -> None:
        async with start_in_turn(second):
            pass

    async with start_in_turn(first):
        other = asyncio.create_task(start())
        # Longer than looking at a lock once takes; what does not wait has ended by then.
        done, _ = await asyncio.wait([other], timeout=0.3 if waits else 30)
        assert bool(done) != waits
    await asyncio.wait_for(other, 30)
