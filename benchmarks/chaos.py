"""Faults under load: every answer of a service is compared with the right one while its processes are killed.

python -m benchmarks.chaos --times 10              each fault ten times, one after another
python -m benchmarks.chaos --minutes 60 --seed 7   faults at random for an hour; the seed decides which, when and where
python -m benchmarks.chaos --list                  list the faults
python -m benchmarks.chaos --write                 also put the table into docs/reliability.md

Two replicas of the demo, two routers, and clients that stream through OpenAI's own client at temperature 0. The right
answers are those of the same application before any fault. Exits with 1 if an answer was wrong, or a stream was cut
without an error event.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import ray
from ray import serve

from benchmarks.compare import PAGE, publish
from benchmarks.faults import footprint, gcs, report
from benchmarks.faults.answers import Ending
from benchmarks.faults.application import running
from benchmarks.faults.experiment import Experiment
from benchmarks.faults.injection import FAULTS
from benchmarks.faults.schedule import schedule
from benchmarks.faults.tally import Tally
from benchmarks.servers import free_port

_WARM_UP_S = 10.0
# An hour is divided in so many, after each of which the load stops and what the processes hold is measured.
_LEGS = 4
# The row of what clients saw between the faults, where anything was wrong with it.
_CALM = "no fault"


async def endure(
    experiment: Experiment, faults: Iterator[tuple[float | None, str]], longest_s: float
) -> dict[str, Tally]:
    """What clients saw of each fault.

    Args:
        experiment: the application under load.
        faults: each with the seconds of calm before it.
        longest_s: seconds after which no more faults begin.
    """
    seen: dict[str, Tally] = {}
    until = time.monotonic() + longest_s
    async with experiment.load():
        for calm_s, fault in faults:
            if time.monotonic() > until:
                break
            once = await experiment.suffer(fault, calm_s)
            print(f"{fault}: {_said(once)}", file=sys.stderr, flush=True)
            seen.setdefault(fault, Tally()).include(once)
    return seen


def _said(tally: Tally) -> str:
    endings = ", ".join(f"{count} {ending}" for ending, count in tally.endings.items())
    reasons = "".join(f"\n  {count} × {reason}" for reason, count in tally.reasons.most_common(4))
    when = f"\n  after {', '.join(f'{seconds:.1f}' for seconds in tally.failures_s)} s" if tally.failures_s else ""
    return f"{endings}; whole after {tally.whole_s[-1]:.1f} s{reasons}{when}"


def main() -> int:
    """Measure, and print or write the table."""
    options = _options()
    if options.list:
        print(*FAULTS, sep="\n")
        return 0
    faults = options.fault or list(FAULTS)
    if options.minutes:
        plan, longest_s = schedule(faults, random.Random(options.seed)), 60 * options.minutes
    else:
        plan, longest_s = ((None, fault) for fault, _ in product(faults, range(options.times))), float("inf")
    with tempfile.TemporaryDirectory() as folder:
        seen, held = _measure(Path(folder), options, plan, longest_s)
    in_order = {fault: seen[fault] for fault in (_CALM, *FAULTS) if fault in seen}
    name = "soak" if options.minutes else "faults"
    publish(name, f"{report.table(in_order)}\n\n{held}", PAGE.with_name("reliability.md"))
    return int(any(tally.endings[Ending.WRONG] or tally.endings[Ending.CUT] for tally in seen.values()))


def _measure(
    folder: Path, options: argparse.Namespace, plan: Iterator[tuple[float | None, str]], longest_s: float
) -> tuple[dict[str, Tally], str]:
    """What clients saw of each fault, and the table of what the processes held: before, and after each leg."""
    seen: dict[str, Tally] = {}
    legs = _LEGS if options.minutes else 1
    state, files = folder / "gcs", folder / "service"
    files.mkdir()
    # As `rayllm run` does.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        namespace="serve",
        _system_config=gcs.stored_in(state),
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": free_port()})
        with running(files) as address:
            experiment = Experiment(address, options.streams, options.pause, seed=options.seed)
            asyncio.run(_warm_up(experiment))
            held = {"before": footprint.measure(experiment.cluster)}
            for leg in range(1, legs + 1):
                for fault, tally in asyncio.run(endure(experiment, plan, longest_s / legs)).items():
                    seen.setdefault(fault, Tally()).include(tally)
                after = f"after {options.minutes * leg / legs:g} minutes" if options.minutes else "after"
                held[after] = footprint.measure(experiment.cluster)
            if experiment.calm.bad:
                seen[_CALM] = experiment.calm
            return seen, footprint.table(held)
    finally:
        serve.shutdown()
        ray.shutdown()


async def _warm_up(experiment: Experiment) -> None:
    async with experiment.load():
        await asyncio.sleep(_WARM_UP_S)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, metavar="N", help="faults at random; none begins after N minutes")
    length.add_argument("--times", type=int, default=3, metavar="N", help="each fault so often (default: 3)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of all that is random (default: 0)")
    parser.add_argument("--streams", type=int, default=32, metavar="K", help="clients at once (default: 32)")
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="seconds between a client's requests")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this fault; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the faults, and do nothing")
    parser.add_argument("--write", action="store_true", help="also write the table to the docs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
