from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.config import LocalSource
from rayllm.core.errors import ConfigError
from rayllm.plan.cpu import memory_bytes
from rayllm.plan.cpu_cache import BLOCK, cache_bytes, free_memory
from rayllm.plan.gpus import GIB
from rayllm.plan.measure import measure

DEMO = measure(LocalSource(path=str(Path(__file__).parents[3] / "models" / "rayllm-demo" / "weights")))
MIB = 2**20
ONE_REQUEST = DEMO.token_bytes * 1024


def test_it_takes_half_of_what_the_weights_leave() -> None:
    left = 300 * MIB
    assert cache_bytes(DEMO, DEMO.weights.bytes + left, 1024, 10_000) == left // 2


def test_it_takes_no_more_than_usual_requests_or_a_few_long_ones_need() -> None:
    sequences = 2 * GIB // ONE_REQUEST
    assert cache_bytes(DEMO, 64 * GIB, 1024, sequences) == sequences * ONE_REQUEST
    assert cache_bytes(DEMO, 64 * GIB, 2048, sequences) == sequences * ONE_REQUEST
    assert cache_bytes(DEMO, 64 * GIB, 1024, 1) == 64 * MIB


def test_a_request_that_does_not_fit_is_refused_with_the_longest_that_does() -> None:
    room = 10 * BLOCK * DEMO.token_bytes
    free = DEMO.weights.bytes + 2 * room
    with pytest.raises(ConfigError, match=r"max_request_context_length: .* 2,048 tokens .* set it to at most 1,280\."):
        cache_bytes(DEMO, free, None, 1)
    assert cache_bytes(DEMO, free, 1280, 1) == 64 * MIB


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the model's weights, 0\.0 GiB, do not fit in the 0\.0 GiB"):
        cache_bytes(DEMO, DEMO.weights.bytes, None, 1)


@pytest.mark.parametrize(("free", "found"), [(64 * GIB, 4 * GIB), (2 * GIB, GIB), (0, 64 * MIB)])
def test_a_model_that_cannot_be_measured_gets_some(free: int, found: int) -> None:
    assert cache_bytes(None, free, None, 256) == found


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


OLD = "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 9\ninactive_file 50\n"}, 350),
        ({"memory.max": "1000", "memory.current": "1700", "memory.stat": ""}, 0),
        (dict(zip(OLD, ("2000", "500", "total_inactive_file 100\n"), strict=True)), 1600),
    ],
)
def test_the_free_memory_is_within_the_limit_of_the_group(tmp_path: Path, groups: dict[str, str], found: int) -> None:
    assert free_memory(write(tmp_path, groups)) == found


@pytest.mark.parametrize("limit", [None, "max", "nonsense", f"{1 << 60}"])
def test_without_a_lower_limit_the_free_memory_is_the_machines(tmp_path: Path, limit: str | None) -> None:
    groups = {"memory.max": limit, "memory.current": "5", "memory.stat": ""} if limit else {}
    assert 0 < free_memory(write(tmp_path, groups)) < memory_bytes()
