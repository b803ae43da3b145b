"""How RayLLM serves beside vLLM's own server and ray.serve.llm, each on the same engine, in turns.

python -m benchmarks.serving                                   all parts, beside vLLM's own server
python -m benchmarks.serving paced flood --peers rayllm,vllm   some parts and servers
python -m benchmarks.serving --write                           also put the tables into docs/performance.md

Parts: demo (a real engine), and on an engine that only keeps a pace: paced (streams), idle (memory of streams that
wait), large (a prompt of 100,000 tokens beside small streams) and flood (requests for a model that there is not).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from benchmarks import paced
from benchmarks.compare import publish, take_turns
from benchmarks.connection import Connection
from benchmarks.load import CHAT, ask_all, chat, measure, percentile, summary
from benchmarks.servers import DEMO, Server, bare_vllm, ray_serve_llm, ray_serve_llm_tuned, rayllm

PEERS = {"vllm": bare_vllm, "rayllm": rayllm, "serve": ray_serve_llm, "serve-tuned": ray_serve_llm_tuned}
BASE = "vllm"
TITLES = {"vllm": "vLLM", "rayllm": "RayLLM", "serve": "ray.serve.llm", "serve-tuned": "ray.serve.llm, tuned"}
STREAMS = {"demo": (1, 8, 32, 64), "paced": (1, 8, 32, 64, 128, 512)}
IDLE = 1000
SMALL = 8
LARGE_TOKENS = 100_000
REFUSALS = 400

Round = Mapping[str, float]
"""What one turn of one server gave, by measure."""


@dataclass(frozen=True)
class Running:
    """A server that takes part, and what it serves."""

    peer: str
    server: Server
    model: str


def streams_turn(running: Running, streams: int, tokens: int) -> Round:
    """A round of chats: two a stream, or one where they are so many that it lasts long enough."""
    before = running.server.cpu_s()
    seen = measure(running.server.url, running.model, streams, streams if streams > 128 else 2 * streams, tokens)
    spent = running.server.cpu_s() - before
    return {
        "tokens/s": seen.tokens_per_s,
        "tokens / CPU s": seen.tokens / spent,
        "CPU s / 1000 tokens": 1000 * spent / seen.tokens,
        "first token p50, ms": 1000 * seen.first_token_p50,
        "first token p99, ms": 1000 * seen.first_token_p99,
        "gap p50, ms": 1000 * seen.gap_p50,
        "gap p99, ms": 1000 * seen.gap_p99,
        "load's own share of a core": seen.own_cpu_share,
    }


def large_turn(running: Running) -> Round:
    """Gaps of small streams alone, and while one large prompt is taken in."""
    return uvloop.run(_large(running))


async def _large(running: Running) -> Round:
    url, model = running.server.url, running.model
    alone = await _small_gaps(url, model)
    connection = Connection(url)
    large = connection.request(CHAT, chat(model, 1, question=" the" * LARGE_TOKENS))

    async def ask() -> float:
        await asyncio.sleep(0.3)
        answer = await connection.ask(large)
        answer.check()
        if answer.usage["prompt_tokens"] < LARGE_TOKENS:
            raise RuntimeError(f"the large prompt had {answer.usage['prompt_tokens']} tokens")
        return answer.token_times[0] - answer.sent

    beside, first_token = await asyncio.gather(_small_gaps(url, model), ask())
    connection.close()
    return {
        "gap max alone, ms": 1000 * max(alone),
        "gap max beside it, ms": 1000 * max(beside),
        "gap p99 beside it, ms": 1000 * percentile(beside, 99),
        "first token of the large one, ms": 1000 * first_token,
    }


async def _small_gaps(url: str, model: str) -> list[float]:
    connections = [Connection(url) for _ in range(SMALL)]
    answers = await ask_all(connections, connections[0].request(CHAT, chat(model, 128)), SMALL)
    for answer, connection in zip(answers, connections, strict=True):
        answer.check()
        connection.close()
    return summary(answers, 1, 0).gaps


def flood_turn(running: Running) -> Round:
    """Requests for an unknown model as fast as they are refused, alone and beside small streams."""
    before = running.server.cpu_s()
    wall = uvloop.run(_flood(running))
    spent = running.server.cpu_s() - before
    gaps = uvloop.run(_beside_flood(running))
    return {
        "refusals/s": REFUSALS / wall,
        "CPU ms / refusal": 1000 * spent / REFUSALS,
        "gap p99 beside it, ms": 1000 * percentile(gaps, 99),
    }


async def _flood(running: Running) -> float:
    connections = [Connection(running.server.url) for _ in range(16)]
    request = connections[0].request(CHAT, chat("no-such-model", 1))
    started = time.perf_counter()
    answers = await ask_all(connections, request, REFUSALS)
    wall = time.perf_counter() - started
    if any(answer.status != 404 for answer in answers):
        raise RuntimeError(f"statuses of refusals: { ({answer.status for answer in answers}) }")
    for connection in connections:
        connection.close()
    return wall


async def _beside_flood(running: Running) -> list[float]:
    small = asyncio.create_task(_small_gaps(running.server.url, running.model))
    await asyncio.sleep(0.1)
    while not small.done():
        await _flood(running)
    return await small


def idle_turn(running: Running) -> Round:
    """Memory by kind of process before, with and after a thousand streams that wait for their second word."""
    return uvloop.run(_idle(running))


async def _idle(running: Running) -> Round:
    # The first requests bring in what a process holds for good.
    await _small_gaps(running.server.url, running.model)
    before = running.server.memory_mb()
    connections = [Connection(running.server.url) for _ in range(IDLE)]
    request = connections[0].request(CHAT, chat(running.model, 2, vllm_xargs={"pace_ms": 600_000}))
    waiting = [asyncio.create_task(connection.ask(request)) for connection in connections]
    async with asyncio.timeout(120):
        while any(not connection.answer.token_times for connection in connections):
            await asyncio.sleep(0.5)
    during = running.server.memory_mb()
    for connection in connections:
        connection.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(5)
    after = running.server.memory_mb()
    kinds = {f"KB / stream, {kind}": during[kind] - held for kind, held in before.items()}
    return {
        "MB before": sum(before.values()),
        f"MB with {IDLE} streams": sum(during.values()),
        "MB after": sum(after.values()),
        **{kind: 1000 * grown / IDLE for kind, grown in kinds.items() if grown >= 1},
    }


class Table:
    """Rows of measures, a column a peer: medians, and beside the base how they compare, with the range."""

    def __init__(self, peers: Sequence[str], missing: Mapping[str, str]) -> None:
        self._peers = peers
        self._base = BASE if BASE in peers else peers[0]
        self._missing = missing
        order = [self._base, *(peer for peer in peers if peer != self._base)]
        self._order = order
        self._rows = [
            "| load | measure | " + " | ".join(TITLES[peer] for peer in order) + " |",
            "|---|---|" + "--:|" * len(order),
        ]

    def add(self, label: str, taken: Mapping[str, Sequence[Round]], measures: Sequence[str]) -> None:
        """One row a measure."""
        for name in measures:
            cells = [self._cell(name, taken.get(peer), taken[self._base]) for peer in self._order]
            self._rows.append(f"| {label} | {name} | " + " | ".join(cells) + " |")

    def _cell(self, name: str, rounds: Sequence[Round] | None, base: Sequence[Round]) -> str:
        values = [taken[name] for taken in rounds or () if name in taken]
        if not values:
            return "–"
        shown = f"{statistics.median(values):.4g}"
        both = [pair for pair in zip(rounds or (), base, strict=False) if all(name in taken for taken in pair)]
        if rounds is base or not both:
            return shown
        pairs = [(taken[name], beside[name]) for taken, beside in both]
        if name.endswith(", ms"):
            # Time that the way adds; a ratio would say more about the engine's pace.
            added = sorted(value - beside for value, beside in pairs)
            return f"{shown} ({statistics.median(added):+.3g}; {added[0]:+.3g}…{added[-1]:+.3g})"
        ratios = sorted(value / beside if beside else float("nan") for value, beside in pairs)
        return f"{shown} (×{statistics.median(ratios):.2f}; {ratios[0]:.2f}–{ratios[-1]:.2f})"

    def text(self) -> str:
        """The table in Markdown, and the peers that could not take part."""
        notes = [f"\n{TITLES[peer]} did not take part: {reason}" for peer, reason in self._missing.items()]
        return "\n".join([*self._rows, *notes])


MEASURES = {
    "demo": ("tokens/s", "CPU s / 1000 tokens", "first token p50, ms", "first token p99, ms", "gap p99, ms"),
    "paced": (
        "tokens/s",
        "tokens / CPU s",
        "CPU s / 1000 tokens",
        "first token p50, ms",
        "first token p99, ms",
        "gap p50, ms",
        "gap p99, ms",
        "load's own share of a core",
    ),
}
TURNS: dict[str, tuple[str, Callable[[Running], Round]]] = {
    "idle": (f"{IDLE} waiting streams", idle_turn),
    "large": (f"{SMALL} streams beside a prompt of {LARGE_TOKENS:,} tokens", large_turn),
    "flood": ("an unknown model, 16 at once", flood_turn),
}


def run_part(part: str, all_running: Sequence[Running], options: argparse.Namespace, table: Table) -> None:
    """One part on the servers that run."""
    if part in MEASURES:
        for streams in options.streams or STREAMS[part]:
            turn = partial(streams_turn, streams=streams, tokens=options.tokens)
            taken = _turns(all_running, turn, options)
            label = f"{streams} stream{'s' if streams > 1 else ''}"
            table.add(label, taken, MEASURES[part])
            print(f"{part}, {label}: done", file=sys.stderr)
    else:
        label, one_turn = TURNS[part]
        taken = _turns(all_running, one_turn, options)
        measures = dict.fromkeys(name for rounds in taken.values() for one in rounds for name in one)
        table.add(label, taken, list(measures))
        print(f"{part}: done", file=sys.stderr)


def _turns(
    all_running: Sequence[Running], turn: Callable[[Running], Round], options: argparse.Namespace
) -> dict[str, list[Round]]:
    attempt = partial(_attempt, turn)
    if turn is idle_turn:
        # Only the first time: what a process has held once it hardly gives back.
        return {running.peer: [attempt(running)] for running in all_running}
    rounds = take_turns(all_running, attempt, options.rounds)
    return {running.peer: taken for running, taken in zip(all_running, rounds, strict=True)}


def _attempt(turn: Callable[[Running], Round], running: Running) -> Round:
    try:
        return turn(running)
    except (RuntimeError, OSError) as error:
        # A server that cannot stand a load has no figures for it; the others still have theirs.
        print(f"{TITLES[running.peer]}: {type(error).__name__}: {error}", file=sys.stderr)
        return {}


def run_parts(engine: str, parts: Sequence[str], options: argparse.Namespace) -> None:
    """Start each peer on the engine, and run these parts on all of them."""
    if not parts:
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, path, variables = "rayllm-demo", DEMO, {}
        if engine == "paced":
            model, path, variables = paced.MODEL, paced.write_model(folder), paced.variables(folder)
        all_running, missing = [], {}
        for peer in options.peers:
            # One after the other: servers that start at once slow each other down for minutes.
            try:
                server = stack.enter_context(PEERS[peer](path, variables))
            except RuntimeError as error:
                missing[peer] = str(error)
                print(f"{TITLES[peer]}: {error}", file=sys.stderr)
            else:
                all_running.append(Running(peer, server, model))
                print(f"{TITLES[peer]} runs", file=sys.stderr)
        for part in parts:
            table = Table([running.peer for running in all_running], missing)
            run_part(part, all_running, options, table)
            publish(f"serving-{part}", table.text())


def main() -> None:
    # In this order: the other parts would leave memory behind for `idle`.
    parts = ["demo", "idle", "paced", "large", "flood"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*parts, []], help=", ".join(parts))
    parser.add_argument("--peers", type=lambda text: text.split(","), default=["vllm", "rayllm"], help=", ".join(PEERS))
    parser.add_argument("--streams", type=lambda text: [int(one) for one in text.split(",")], help="how many at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    options = parser.parse_args()
    chosen = [part for part in parts if part in (options.parts or parts)]
    run_parts("demo", [part for part in chosen if part == "demo"], options)
    run_parts("paced", [part for part in chosen if part != "demo"], options)


if __name__ == "__main__":
    main()
