"""Streamed chat through RayLLM beside vLLM's own server: the same weights, machine and load, in one run.

python -m benchmarks.chat            print the table
python -m benchmarks.chat --write    also put it into docs/performance.md
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.compare import publish, rows, take_turns
from benchmarks.load import Seen, measure
from benchmarks.servers import Server, bare_vllm, rayllm

MODEL = "rayllm-demo"
MAX_TOKENS = 128
REQUESTS = {1: 6, 8: 24, 32: 64}  # concurrency → requests a round


@dataclass(frozen=True)
class Round:
    """One server's turn."""

    seen: Seen
    cpu_s: float

    @property
    def cpu_s_per_1000_tokens(self) -> float:
        """CPU seconds of all the server's processes for a thousand tokens."""
        return 1000 * self.cpu_s / self.seen.tokens


def turn(server: Server, concurrency: int) -> Round:
    """One round of load on `server`."""
    before = server.cpu_s()
    seen = measure(server.url, MODEL, concurrency, REQUESTS[concurrency], MAX_TOKENS)
    return Round(seen, server.cpu_s() - before)


MEASURES = {
    "tokens/s": lambda r: r.seen.tokens_per_s,
    "first token p50, ms": lambda r: 1000 * r.seen.first_token_p50,
    "gap p99, ms": lambda r: 1000 * r.seen.gap_p99,
    "CPU s / 1000 tokens": lambda r: r.cpu_s_per_1000_tokens,
}


def main() -> None:
    table = ["| streams | measure | RayLLM | vLLM | ratio | range |", "|--:|---|--:|--:|--:|---|"]
    with ExitStack() as stack:
        # One after the other: two engines that start at once slow each other down for minutes.
        servers = [stack.enter_context(rayllm()), stack.enter_context(bare_vllm())]
        for concurrency in REQUESTS:
            ours, theirs = take_turns(servers, lambda server, n=concurrency: turn(server, n))
            table += rows(str(concurrency), ours, theirs, MEASURES)
            print(f"{concurrency} streams done", file=sys.stderr)
    publish("chat", "\n".join(table))


if __name__ == "__main__":
    main()
