"""Policies for choosing a replica, on a simulated fleet of four: what they save, and how evenly they load.

python -m benchmarks.routing            print the table
python -m benchmarks.routing --write    also put it into docs/performance.md
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from benchmarks import traffic
from benchmarks.compare import publish, read_options
from benchmarks.fleet import Fleet, Outcome, Shape, Turn
from rayllm.routing import POLICIES, Candidate, Policy, RoutingRequest, create_policy
from rayllm.routing.policies import LeastLoaded

_LOADS: Mapping[str, Callable[[], list[Turn]]] = {
    "chats": traffic.chats,
    "tenants": traffic.tenants,
    "documents": traffic.documents,
    "no reuse": traffic.singles,
    "adapters": traffic.adapted,
}
_SLOTS = Shape().replicas * Shape().slots


class AtRandom(LeastLoaded):
    """Any replica."""

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        """Any candidate."""
        return random.choice(candidates)


class RoundRobin(LeastLoaded):
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        """The next candidate."""
        self._next = (self._next + 1) % len(candidates)
        return candidates[self._next]


class PowerOfTwo(LeastLoaded):
    """Ray's: of two replicas the one with the shorter queue, among those that hold the adapter if any does.

    It sees queues as they are at this moment, which is more than Ray knows.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._queues = {replica.name: replica for replica in fleet.replicas}

    def choose(self, request: RoutingRequest, candidates: Sequence[Candidate], replicas: int = 0) -> Candidate:
        """Of two at random the one with the shorter queue."""
        holders = [one for one in candidates if request.adapter and request.adapter in one.adapters] or candidates
        two = random.sample(holders, min(2, len(holders)))
        return min(two, key=lambda one: self._queues[one.id].requests)


def policies() -> dict[str, Callable[[Fleet], Policy]]:
    """What is compared, by name."""
    ours: dict[str, Callable[[Fleet], Policy]] = {
        name: lambda fleet, name=name: create_policy(name)  # type: ignore[misc]
        for name in POLICIES
    }
    return {
        "random": lambda fleet: AtRandom(),
        "round robin": lambda fleet: RoundRobin(),
        "Ray's power of two": PowerOfTwo,
        **ours,
    }


def fewest_loads(names: Sequence[str], slots: int) -> int:
    """Loads that nobody can go below who knows the future: one engine with all slots, that drops what comes last."""
    next_use, nexts = dict[str, int](), [0] * len(names)
    for at in range(len(names) - 1, -1, -1):
        nexts[at] = next_use.get(names[at], len(names))
        next_use[names[at]] = at
    resident: dict[str, int] = {}
    loads = 0
    for name, following in zip(names, nexts, strict=True):
        if name not in resident:
            loads += 1
            if len(resident) >= slots:
                del resident[max(resident, key=resident.__getitem__)]
        resident[name] = following
    return loads


def loads_of_one_engine(names: Sequence[str], slots: int) -> int:
    """Loads of one engine that has all slots, and drops what was not used for longest."""
    resident: OrderedDict[str, None] = OrderedDict()
    loads = 0
    for name in names:
        loads += name not in resident
        resident[name] = None
        resident.move_to_end(name)
        if len(resident) > slots:
            resident.popitem(last=False)
    return loads


def _row(load: str, name: str, turns: Sequence[Turn], make: Callable[[Fleet], Policy]) -> str:
    random.seed(1)
    one, four = (Fleet(Shape(routers=routers), make).serve(turns) for routers in (1, 4))
    saved = _saved(turns, one), _saved(turns, four)
    cells = [f"{a} / {b}" for a, b in (saved, *((_cell(one, at), _cell(four, at)) for at in range(3)))]
    return f"| {load} | {name} | {' | '.join(cells)} |"


def _saved(turns: Sequence[Turn], outcome: Outcome) -> str:
    """Hits of what could be hit, or loads over the fewest possible."""
    names = [turn.request.adapter for turn in turns]
    if any(names):
        return f"{outcome.loads / fewest_loads(names, _SLOTS):.2f}x loads"
    return f"{outcome.hit_rate:.1%}" if any(one.reusable for one in outcome.served) else "–"


def _cell(outcome: Outcome, at: int) -> str:
    return (
        f"{outcome.imbalance:.2f}",
        f"{1000 * outcome.first_token(0):.0f}",
        f"{1000 * outcome.first_token(0.9):.0f}",
    )[at]


def main() -> None:
    """Serve each load under each policy."""
    read_options(__doc__)
    rows = [
        "| load | policy | saved | most / mean load | first token, mean ms | p90 ms |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for load, make_turns in _LOADS.items():
        turns = make_turns()
        rows += [_row(load, name, turns, make) for name, make in policies().items()]
        names = [turn.request.adapter for turn in turns]
        if any(names):
            loads = loads_of_one_engine(names, _SLOTS) / fewest_loads(names, _SLOTS)
            rows.append(f"| {load} | one engine with all slots | {loads:.2f}x loads | – | – | – |")
    publish("routing", "\n".join(rows))


if __name__ == "__main__":
    main()
