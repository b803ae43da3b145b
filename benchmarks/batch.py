"""Throughput and memory of batch inference.

python -m benchmarks.batch engine [--write]   rows and tokens per second of RayLLM, vLLM offline and ray.data.llm
python -m benchmarks.batch scale [--write]    rows per second by the number of engines, which are paced
python -m benchmarks.batch memory [--write]   memory for 100,000 rows through an engine that takes no time
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import ray

from benchmarks.batch_systems import BATCH, LOGICAL_CPUS, SYSTEMS
from benchmarks.compare import publish
from benchmarks.processes import engines_of
from rayllm.batch import ActorStage, Processor, ProcessorConfig

ROUNDS = 3
# So many that those under way at either end do not matter.
ROWS = 4000
LIMIT_S = 400
ENGINES = (1, 2, 4)
MANY = 100_000
# What the paced engine takes for a row, and how many it works on at once.
ROW_S, AT_ONCE = 0.2, 16
_ROOT = Path(__file__).parent.parent


def main() -> None:
    benchmarks = {"engine": engine, "scale": scale, "memory": memory}
    parser = argparse.ArgumentParser(
        "python -m benchmarks.batch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=benchmarks, nargs="?", default="engine")
    parser.add_argument("--write", action="store_true", help="also write the table to docs/performance.md")
    benchmarks[parser.parse_args().benchmark]()


def engine() -> None:
    """The systems in turn, so that a slow minute hits all."""
    rounds = [{name: _alone(name) for name in SYSTEMS} for _ in range(ROUNDS)]
    lines = ["| | rows/s | tokens/s | RayLLM's rows/s, as a multiple | range |", "|---|---|---|---|---|"]
    for name in SYSTEMS:
        taken = [(ours, theirs) for each in rounds if (ours := each["rayllm"]) and (theirs := each[name])]
        if not taken:
            lines.append(f"| {name} | not through in {LIMIT_S} s | | | |")
            continue
        rate, tokens = (statistics.median(theirs[key] for _, theirs in taken) for key in ("rows_per_s", "tokens_per_s"))
        ratios = sorted(ours["rows_per_s"] / theirs["rows_per_s"] for ours, theirs in taken)
        told = f"{statistics.median(ratios):.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f}" if name != "rayllm" else " | "
        lines.append(f"| {name} | {rate:.1f} | {tokens:,.0f} | {told} |")
    publish("batch-engine", "\n".join(lines))


def _alone(name: str) -> dict[str, float] | None:
    """The rates of a system; None where it takes too long."""
    command = [sys.executable, "-m", "benchmarks.batch_systems", name, str(ROWS)]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    # vLLM logs to the same output, also after this.
    found: dict[str, float] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    print(name, found, file=sys.stderr)
    return found


class _PacedEngine:
    """Answers a row in ROW_S seconds, AT_ONCE of them at once, and computes nothing."""

    def __init__(self, row_s: float) -> None:
        self._row_s = row_s
        self._slots = ThreadPoolExecutor(AT_ONCE)

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return list(self._slots.map(self._answer, rows)) if self._row_s else [self._answer(row) for row in rows]

    def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self._row_s)
        return {**row, "generated_text": "x" * 200, "num_generated_tokens": 50}


def _processor(engines: int, row_s: float) -> Processor[ProcessorConfig]:
    processor = Processor(
        ProcessorConfig(batch_size=BATCH, concurrency=engines, show_progress=False),
        preprocess_fn=lambda row: {"prompt": f"Row {row['id']}: " + "word " * 100},
        postprocess_fn=lambda row: {"answer": row["generated_text"], "at": time.time()},
    )
    options = {"concurrency": engines, "batch_size": BATCH, "max_concurrency": 4, "num_cpus": 0.5}
    stage = ActorStage(fn=_PacedEngine, fn_constructor_kwargs={"row_s": row_s}, map_kwargs=options)
    processor.append_stage("PacedEngineStage", stage)
    processor.arrange_before("PacedEngineStage", lambda ds: ds.repartition(target_num_rows_per_block=BATCH))
    return processor


def scale() -> None:
    """The paced engines: what they could do at most, and what they did."""
    taken: dict[int, list[float]] = {count: [] for count in ENGINES}
    with _cluster():
        for _ in range(ROUNDS):
            for count in ENGINES:
                rows = BATCH * 20 * count
                times = sorted(row["at"] for row in _processor(count, ROW_S)(ray.data.range(rows)).iter_rows())
                # Before that, workers of Ray are still starting; at either end, as many rows are under way.
                first, last = rows // 4, rows * 3 // 4
                taken[count].append((last - first) / (times[last - 1] - times[first - 1]))
    lines = ["| engines | rows/s | of what they could do | of one engine |", "|---|---|---|---|"]
    one = statistics.median(taken[1])
    for count, found in taken.items():
        rate = statistics.median(found)
        lines.append(f"| {count} | {rate:.0f} | {rate * ROW_S / AT_ONCE / count:.2f} | {rate / one:.2f} |")
    publish("batch-scale", "\n".join(lines))


def memory() -> None:
    """Memory of all processes of the job, sampled while rows are written to files."""
    samples: list[tuple[float, float]] = []
    with _cluster(), TemporaryDirectory() as folder, _sampled(samples):
        began = time.monotonic()
        dataset = _processor(1, 0)(ray.data.range(MANY))
        dataset.write_parquet(folder)
        passed = time.monotonic() - began
    thirds = [samples[i * len(samples) // 3 : (i + 1) * len(samples) // 3] for i in range(3)]
    own = [max(rss for rss, _ in third) / 2**20 for third in thirds]
    store = [max(shared for _, shared in third) / 2**20 for third in thirds]
    lines = ["| | first third | second | last |", "|---|---|---|---|"]
    lines.append(f"| processes, MiB | {own[0]:.0f} | {own[1]:.0f} | {own[2]:.0f} |")
    lines.append(f"| object store, MiB | {store[0]:.1f} | {store[1]:.1f} | {store[2]:.1f} |")
    publish("batch-memory", "\n".join(lines) + f"\n\n{MANY:,} rows, {MANY / passed:,.0f} a second.")


@contextmanager
def _cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=LOGICAL_CPUS, log_to_driver=False, include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _sampled(samples: list[tuple[float, float]]) -> Iterator[None]:
    """Collect the memory of this process and its children that is their own, and of the object store, in bytes."""
    stop = False

    def sample() -> None:
        while not stop:
            own, store = 0, 0
            members = {psutil.Process(), *psutil.Process().children(recursive=True)}
            for process in members.union(engines_of(members)):
                try:
                    found = process.memory_info()
                except psutil.Error:
                    continue
                own += found.rss - found.shared
                if "raylet" in process.name():
                    store = found.shared
            samples.append((own, store))
            time.sleep(0.5)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(sample)
        try:
            yield
        finally:
            stop = True


if __name__ == "__main__":
    main()
