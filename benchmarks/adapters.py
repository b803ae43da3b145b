"""What a resident adapter costs a request, beside its base, and beside the same pair on vLLM's own server.

python -m benchmarks.adapters            print the table
python -m benchmarks.adapters --write    also put it into docs/performance.md
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import uvloop

from benchmarks.compare import publish, read_options, take_turns
from benchmarks.load import Seen, run
from benchmarks.servers import Server, bare_vllm, rayllm

BASE, ADAPTER = "rayllm-demo", "rayllm-demo:pirate"
CONCURRENCY = (1, 8)
REQUESTS = 16  # a round
TOKENS = 32
MEASURES: dict[str, Callable[[Seen], float]] = {
    "time a request": lambda seen: seen.wall,
    "first token p50": lambda seen: seen.first_token_p50,
}


def turn(asked: tuple[Server, str], concurrency: int) -> Seen:
    """One round of one model on one server."""
    server, model = asked
    return uvloop.run(run(server.url, model, concurrency, REQUESTS, TOKENS))


def rows(concurrency: int, rounds: list[list[Seen]]) -> list[str]:
    """Rows of the table: medians of the ratios of neighbouring rounds."""
    our_base, our_adapter, their_base, their_adapter = rounds
    made = []
    for name, value in MEASURES.items():
        ours = [value(a) / value(b) for a, b in zip(our_adapter, our_base, strict=True)]
        theirs = [value(a) / value(b) for a, b in zip(their_adapter, their_base, strict=True)]
        beside = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        cells = (statistics.median(ours), statistics.median(theirs), beside)
        made.append(f"| {concurrency} at once | {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return made


def main() -> None:
    read_options(__doc__)
    head = "| load | measure | RayLLM: adapter / base | vLLM: adapter / base | RayLLM / vLLM |"
    table = [head, "|---|---|--:|--:|--:|"]
    with rayllm() as ours, bare_vllm() as theirs:
        asked = [(server, model) for server in (ours, theirs) for model in (BASE, ADAPTER)]
        for concurrency in CONCURRENCY:
            table += rows(concurrency, take_turns(asked, lambda pair, n=concurrency: turn(pair, n)))
            print(f"{concurrency} at once: done", file=sys.stderr)
    publish("adapters", "\n".join(table))


if __name__ == "__main__":
    main()
