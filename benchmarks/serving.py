"""How RayLLM serves beside vLLM's own server and ray.serve.llm, each on the same engine, in turns.

python -m benchmarks.serving                                   all parts, beside vLLM's own server
python -m benchmarks.serving paced flood --peers rayllm,vllm   some parts and servers
python -m benchmarks.serving --write                           also put the tables into docs/performance.md

Parts: cpu and cpu-tiny (`benchmarks.cpu`: a small and a tiny model on this CPU), demo (a real engine), short (answers
of one token on it, 16 at once), and on an engine that only keeps a pace: idle (memory of streams that wait), unary
(short answers that are no streams), arrivals (streams that come by chance), paced (streams of which each waits for
another's end), large (a prompt of 100,000 tokens beside small streams), flood (requests for a model that there is not),
relay (what routers do for replicas on other nodes) and ways (those of a reply that RayLLM does not take, or only where
it must).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import cpu, paced
from benchmarks.compare import publish, take_turns
from benchmarks.servers import (
    DEMO,
    bare_vllm,
    ray_serve_llm,
    ray_serve_llm_grpc,
    ray_serve_llm_tuned,
    rayllm,
    rayllm_behind_haproxy,
    rayllm_behind_proxy,
    rayllm_relaying,
)
from benchmarks.turns import (
    IDLE,
    LARGE_TOKENS,
    SMALL,
    Round,
    Running,
    arrivals_turn,
    flood_turn,
    idle_turn,
    large_turn,
    streams_turn,
    unary_turn,
)

BASE = "vllm"
PEERS = {
    "vllm": bare_vllm,
    "rayllm": rayllm,
    "rayllm-relay": rayllm_relaying,
    "rayllm-proxy": rayllm_behind_proxy,
    "rayllm-haproxy": rayllm_behind_haproxy,
    "serve": ray_serve_llm,
    "serve-grpc": ray_serve_llm_grpc,
    "serve-tuned": ray_serve_llm_tuned,
}
TITLES = {
    "vllm": "vLLM",
    "rayllm": "RayLLM",
    "rayllm-relay": "RayLLM, relaying by HTTP",
    "rayllm-proxy": "RayLLM behind Serve's proxy",
    "rayllm-haproxy": "RayLLM behind HAProxy",
    "serve": "ray.serve.llm",
    "serve-grpc": "ray.serve.llm, gRPC",
    "serve-tuned": "ray.serve.llm, tuned",
}
STREAMS = {
    "demo": (1, 8, 32, 64),
    "paced": (1, 8, 32, 64, 128, 512),
    "arrivals": (64, 128),
    "relay": (8, 128),
    "ways": (8, 128),
}
USUAL = ("vllm", "rayllm")
RELAY = ("vllm", "rayllm", "rayllm-relay")
WAYS = ("vllm", "rayllm", "rayllm-relay", "rayllm-proxy", "rayllm-haproxy", "serve-grpc")


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
    "arrivals": ("first token p50, ms", "first token p99, ms", "gap p50, ms", "gap p99, ms"),
    "relay": ("tokens/s", "CPU s / 1000 tokens", "first token p50, ms", "gap p99, ms"),
    "ways": ("tokens/s", "CPU s / 1000 tokens", "first token p50, ms", "gap p99, ms"),
}
TURNS: dict[str, tuple[str, Callable[[Running], Round]]] = {
    "unary": ("one answer of one token after the other", partial(unary_turn, at_once=1, answers=200)),
    "short": ("answers of one token, 16 at once", partial(unary_turn, at_once=16, answers=640)),
    "idle": (f"{IDLE} waiting streams", idle_turn),
    "large": (f"{SMALL} streams beside a prompt of {LARGE_TOKENS:,} tokens", large_turn),
    "flood": ("an unknown model, 16 at once", flood_turn),
}


def run_part(part: str, all_running: Sequence[Running], options: argparse.Namespace, table: Table) -> None:
    """One part on the servers that run."""
    if part in MEASURES:
        for streams in options.streams or STREAMS[part]:
            kind = arrivals_turn if part == "arrivals" else streams_turn
            turn = partial(kind, streams=streams, tokens=options.tokens)
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


def run_parts(engine: str, parts: Sequence[str], peers: Sequence[str], options: argparse.Namespace) -> None:
    """Start each peer on the engine, and run these parts on all of them."""
    if not parts:
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model, path, variables = "rayllm-demo", DEMO, {}
        if engine == "paced":
            model, path, variables = paced.MODEL, paced.write_model(folder), paced.variables(folder)
        all_running, missing = [], {}
        for peer in peers:
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
    parts = [
        "cpu",
        "cpu-tiny",
        "demo",
        "short",
        "idle",
        "unary",
        "arrivals",
        "paced",
        "large",
        "flood",
        "relay",
        "ways",
    ]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*parts, []], help=", ".join(parts))
    parser.add_argument("--peers", type=lambda text: text.split(","), help=", ".join(PEERS))
    parser.add_argument("--streams", type=lambda text: [int(one) for one in text.split(",")], help="how many at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    options = parser.parse_args()
    chosen = [part for part in parts if part in (options.parts or parts)]
    together = [part for part in chosen if part not in ("cpu", "cpu-tiny", "demo", "short", "relay", "ways")]
    for part, size in (("cpu", "small"), ("cpu-tiny", "tiny")):
        if part in chosen:
            cpu.measure(size)
    run_parts("demo", [part for part in chosen if part in ("demo", "short")], options.peers or USUAL, options)
    run_parts("paced", together, options.peers or USUAL, options)
    for part, peers in (("relay", RELAY), ("ways", WAYS)):
        run_parts("paced", [one for one in chosen if one == part], options.peers or peers, options)


if __name__ == "__main__":
    main()
