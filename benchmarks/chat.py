"""Streamed chat through RayLLM beside vLLM's own server: the same weights, machine and load, in one run.

    python -m benchmarks.chat            print the table
    python -m benchmarks.chat --write    also put it into docs/performance.md

Both servers run all the time and take turns, so that a slow minute of the machine hits both.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import Seen, run
from benchmarks.servers import Server, bare_vllm, rayllm

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
MODEL = "rayllm-demo"
ROUNDS = 5
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
    seen = asyncio.run(run(server.url, MODEL, concurrency, REQUESTS[concurrency], MAX_TOKENS))
    return Round(seen, server.cpu_s() - before)


MEASURES = {
    "tokens/s": lambda r: r.seen.tokens_per_s,
    "first token p50, ms": lambda r: 1000 * r.seen.first_token_p50,
    "gap p99, ms": lambda r: 1000 * r.seen.gap_p99,
    "CPU s / 1000 tokens": lambda r: r.cpu_s_per_1000_tokens,
}


def compare(ours: list[Round], theirs: list[Round], concurrency: int) -> list[str]:
    """Rows of the table: medians, and the median and range of the ratios of neighbouring rounds."""
    rows = []
    for name, value in MEASURES.items():
        a, b = [value(r) for r in ours], [value(r) for r in theirs]
        ratios = sorted(x / y for x, y in zip(a, b, strict=True))
        rows.append(
            f"| {concurrency} | {name} | {statistics.median(a):.4g} | {statistics.median(b):.4g} | "
            f"{statistics.median(ratios):.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f} |"
        )
    return rows


def measure() -> str:
    """The whole table."""
    rows = ["| streams | measure | RayLLM | vLLM | ratio | range |", "|--:|---|--:|--:|--:|---|"]
    with ExitStack() as stack:
        # One after the other: two engines that start at once slow each other down for minutes.
        servers = [stack.enter_context(rayllm()), stack.enter_context(bare_vllm())]
        for concurrency in REQUESTS:
            turns: dict[str, list[Round]] = {server.name: [] for server in servers}
            for server in servers:
                turn(server, concurrency)  # warm-up
            for _ in range(ROUNDS):
                for server in servers:
                    turns[server.name].append(turn(server, concurrency))
            rows += compare(turns["rayllm"], turns["vllm"], concurrency)
            print(f"{concurrency} streams done", file=sys.stderr)
    return "\n".join(rows)


def main() -> None:
    table = measure()
    print(table)
    if "--write" in sys.argv:
        marked = re.compile(r"(<!-- chat -->\n).*?(<!-- /chat -->)", re.DOTALL)
        text, found = marked.subn(lambda m: f"{m[1]}{table}\n{m[2]}", PAGE.read_text())
        if not found:
            raise SystemExit(f"{PAGE} has no place for the table.")
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
