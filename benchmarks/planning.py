"""What `rayllm plan` works out beside what vLLM itself counts, for small models of many families.

python -m benchmarks.planning            print the tables
python -m benchmarks.planning --write    also put them into docs/performance.md
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.compare import publish, read_options
from rayllm.config import LocalSource
from rayllm.plan.cache_layout import cache_layout
from rayllm.plan.kv_cache import CacheSettings
from rayllm.plan.measure import measure
from tests.vllm import shapes, specs

_CACHE_BYTES, _TOKENS = 2**30, 256


def main() -> None:
    """Count, and print or publish the tables."""
    read_options(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        lines = list(_rows(_counted(shapes.measured, folder), Path(folder)))
    heading = "| model | blocks: vLLM | plan | sequences of 256 tokens: vLLM | plan | parameters: transformers | plan |"
    publish("planning", "\n".join([heading, "|---|---|---|---|---|---|---|", *lines]))
    with tempfile.TemporaryDirectory() as folder:
        lines = list(_rows_gpu(_counted(specs.plan, folder)))
    heading = "| model | tokens in a block | blocks: vLLM | plan | longest sequences: vLLM | plan |"
    publish("planning-gpu", "\n".join([heading, "|---|---|---|---|---|---|", *lines]))


def _counted(count: Callable[[Path], dict[str, dict[str, Any]]], folder: str) -> dict[str, dict[str, Any]]:
    """What vLLM counts, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(count, Path(folder)).result()


def _rows(found: dict[str, dict[str, float]], folder: Path) -> Iterator[str]:
    for name, counted in found.items():
        planned = measure(LocalSource(path=str(folder / name)))
        layout = cache_layout(planned.architecture.caches, CacheSettings(block=int(counted["block"])))
        blocks = _CACHE_BYTES // layout.block_bytes
        sequences = blocks / layout.blocks_of(_TOKENS, _TOKENS)
        pairs = (
            (counted["blocks"], blocks),
            (counted["sequences"], sequences),
            (counted["parameters"], planned.weights.parameters),
        )
        yield f"| {name} | " + " | ".join(f"{_told(theirs)} | {_beside(theirs, ours)}" for theirs, ours in pairs) + " |"


def _rows_gpu(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, case in (specs.CASES | specs.SPARSE_CASES).items():
        counted, (layout, in_flight) = found[name], specs.computed(case)
        blocks = specs.CACHE_BYTES // layout.block_bytes
        sequences = blocks / layout.blocks_of(case.engine.get("max_model_len", specs.TOKENS), in_flight)
        pairs = (counted["blocks"], blocks), (counted["sequences"], sequences)
        cells = (f"{_told(theirs)} | {_beside(theirs, ours)}" for theirs, ours in pairs)
        yield f"| {name} | {counted['block']} | " + " | ".join(cells) + " |"


def _beside(theirs: float, ours: float) -> str:
    return "the same" if abs(ours - theirs) < 1e-6 * theirs else f"{_told(ours)} ({ours / theirs - 1:+.1%})"


def _told(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


if __name__ == "__main__":
    main()
