"""What hostile clients cost the others, and whether made-up requests fail the service.

python -m benchmarks.hostile                     well-behaved clients beside each kind of hostile ones
python -m benchmarks.hostile --write             also put the table into docs/reliability.md
python -m benchmarks.hostile --requests 100000   instead, so many requests that Hypothesis makes; fails at the first
                                                 that the service fails on
python -m benchmarks.hostile --requests 5000 --described   the same by the OpenAPI description of the endpoints
python -m benchmarks.hostile --adapters 1000     instead, forged adapters and so many that Hypothesis makes; fails where
                                                 the service does, or answers for one that it must refuse

One replica of the demo and one router. Well-behaved clients are measured alone and beside each kind in turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from benchmarks.compare import PAGE, publish
from benchmarks.hostility import adapters
from benchmarks.hostility.attacks import ATTACKS
from benchmarks.hostility.corpus import HostileRequest, requests
from benchmarks.hostility.description import described_requests
from benchmarks.hostility.judge import Judge
from benchmarks.load import Seen, run
from benchmarks.processes import titled
from benchmarks.servers import DEMO, Server, rayllm

MODEL = "rayllm-demo"
CLIENTS, REQUESTS, TOKENS = 8, 80, 32
ROUNDS = 3
# Hypothesis remembers what it has made: so many at once.
_AT_ONCE = 1000


@contextmanager
def attacked(server: Server, kind: str) -> Iterator[None]:
    """The server under an attack, from another process, while the block runs."""
    command = [sys.executable, "-m", "benchmarks.hostility.attacks", kind, server.url, MODEL]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        try:
            if not process.stdout.readline():
                raise RuntimeError(f"the attack did not begin: {kind}")
            yield
        finally:
            process.kill()


def _load(server: Server) -> Seen:
    return uvloop.run(run(server.url, MODEL, CLIENTS, REQUESTS, TOKENS))


def measure(server: Server) -> str:
    """A row for each kind: what the others see beside it, divided by what they see without it."""
    rows = [
        "| hostile clients | first token, median | first token, 99 % | tokens a second | router grew by |",
        "|---|--:|--:|--:|--:|",
    ]
    _load(server)
    for kind in ATTACKS:
        alone, beside = [], []
        before = server.memory_mb()["Router"]
        for _ in range(ROUNDS):
            alone.append(_load(server))
            with attacked(server, kind):
                beside.append(_load(server))
        grown = server.memory_mb()["Router"] - before
        cells = [
            _ratio([seen.first_token_p50 for seen in beside], [seen.first_token_p50 for seen in alone]),
            _ratio([seen.first_token_p99 for seen in beside], [seen.first_token_p99 for seen in alone]),
            _ratio([seen.tokens_per_s for seen in beside], [seen.tokens_per_s for seen in alone]),
        ]
        rows.append(f"| {kind} | {' | '.join(cells)} | {grown:+.0f} MB |")
        print(rows[-1], file=sys.stderr, flush=True)
    return "\n".join(rows)


def _ratio(beside: list[float], alone: list[float]) -> str:
    ratios = sorted(a / b for a, b in zip(beside, alone, strict=True))
    return f"×{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"


def send_corpus(server: Server, made: SearchStrategy[HostileRequest], count: int) -> str:
    """Send so many of the requests that Hypothesis makes; returns what became of them, and of the service's processes.

    Raises:
        AssertionError: the service failed on a request, which is the smallest that Hypothesis could find.
    """
    judge = Judge(server.url)
    before = _held(server)
    processes = _router_and_replica()
    for number in range(0, count, _AT_ONCE):

        @seed(number)
        @settings(
            max_examples=min(_AT_ONCE, count - number),
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(made)
        def send(request: HostileRequest) -> None:
            judge.check(request)

        send()
        print(f"{judge.statuses.total()} sent, {_held(server)}", file=sys.stderr, flush=True)
    _load(server)
    statuses = ", ".join(f"{count:,} × {status or 'no reply'}" for status, count in sorted(judge.statuses.items()))
    report = f"{judge.statuses.total():,} requests: {statuses}\nbefore: {before}\nafter: {_held(server)}"
    if _router_and_replica() != processes:
        raise AssertionError(f"a process of the service ended\n{report}")
    return report


def load_adapters(count: int) -> str:
    """Ask for forged adapters, and for so many that Hypothesis makes; returns what became of them.

    Raises:
        AssertionError: one that is forged was not refused as it must be, or the service failed on one.
    """
    demo = yaml.safe_load(DEMO.read_text())
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "adapters"
        demo["model_loading_config"]["model_source"] = str(DEMO.parent / demo["model_loading_config"]["model_source"])
        demo["lora_config"] = {"dynamic_lora_loading_path": str(folder), "max_num_adapters_per_replica": 2}
        model = Path(root) / DEMO.name
        model.write_text(yaml.safe_dump(demo))
        good = DEMO.with_name(MODEL) / "adapters" / "pirate"
        adapters.forge(good, folder)
        with rayllm(model) as server:
            judge = Judge(server.url)
            adapters.check_forged(judge, MODEL)
            adapters.check_made(judge, MODEL, good, folder, count)
    statuses = ", ".join(f"{number:,} × {status}" for status, number in sorted(judge.statuses.items()))
    return f"{judge.statuses.total():,} adapters: {statuses}"


def _router_and_replica() -> set[int]:
    """Their process IDs, without those of children that have yet to execute another program."""
    found = {process.pid: process.ppid() for process in titled("ray::ServeReplica:rayllm")}
    return {process for process, parent in found.items() if parent not in found}


def _made(by_description: bool) -> SearchStrategy[HostileRequest]:
    return described_requests(MODEL) if by_description else requests(MODEL)


def _held(server: Server) -> str:
    """What the router and the replica hold."""
    memory = server.memory_mb()
    descriptors = sum(process.num_fds() for process in titled("ray::ServeReplica:rayllm"))
    return f"router {memory['Router']:.0f} MB, replica {memory[MODEL]:.0f} MB, {descriptors} descriptors"


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, metavar="N", help="send so many requests that Hypothesis makes")
    parser.add_argument("--described", action="store_true", help="made by the OpenAPI description of the endpoints")
    parser.add_argument("--write", action="store_true", help="also write the table to the docs")
    parser.add_argument("--adapters", type=int, metavar="N", help="load forged adapters, and so many made ones")
    options = parser.parse_args()
    if options.adapters:
        print(load_adapters(options.adapters))
        return
    with rayllm() as server:
        if options.requests:
            print(send_corpus(server, _made(options.described), options.requests))
        else:
            publish("hostile", measure(server), PAGE.with_name("reliability.md"))


if __name__ == "__main__":
    main()
