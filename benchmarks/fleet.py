"""Replicas and routers in simulated time: what a choice of replicas costs, told in seconds without an engine.

A replica runs steps as vLLM does: each takes a fixed time, some for each sequence that it decodes, and some for each
token of prompts that it reads, at most `STEP_TOKENS` of these. Its KV cache keeps blocks until others need the room,
and drops those first that were not used for longest; its adapters likewise, which it loads one by one.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from rayllm.routing.candidate import Candidate
from rayllm.routing.request import RoutingRequest
from rayllm.routing.shortlist import SHORTLIST, Shortlists

if TYPE_CHECKING:
    from rayllm.routing.policies import Policy

BLOCK = 64
STEP_TOKENS = 2048
STEP_S, SEQUENCE_S, TOKEN_S = 0.010, 0.00015, 1 / 20_000
ADAPTER_S = 0.3


@dataclass
class Turn:
    """One request: what a router is told, the blocks of its prompt and of its answer, and what follows it."""

    at: float
    request: RoutingRequest
    prompt: Sequence[int]
    answer: Sequence[int]
    then: Turn | None = None
    pause: float = 0.0


@dataclass
class Served:
    """What became of one turn."""

    turn: Turn
    reusable: int
    first_token: float = 0.0
    hits: int = 0


@dataclass
class Shape:
    """A fleet: its replicas, its routers, and the seconds between two words of a replica to a router."""

    replicas: int = 4
    routers: int = 1
    told_every: float = 0.25
    kv_tokens: int = 400_000
    sequences: int = 128
    slots: int = 16


class KvCache:
    """Blocks of a fixed number; those in use stay, of the rest the longest unused go."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._used: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def take(self, prompt: Sequence[int], answer: Sequence[int]) -> int | None:
        """Take blocks for a request; how many of its prompt were there, or None where there is no room."""
        hits = 0
        while hits < len(prompt) - 1 and (prompt[hits] in self._used or prompt[hits] in self._idle):
            hits += 1
        fresh = sum(block not in self._used for block in (*prompt, *answer))
        if self._used and len(self._used) + fresh > self._most:
            return None
        for block in (*prompt, *answer):
            self._used[block] = self._used.get(block, 0) + 1
            self._idle.pop(block, None)
        while self._idle and len(self._used) + len(self._idle) > self._most:
            self._idle.popitem(last=False)
        return hits

    def give_back(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """End the use of a request's blocks; the prompt's end will go before its beginning."""
        for block in reversed((*prompt, *answer)):
            self._used[block] -= 1
            if not self._used[block]:
                del self._used[block]
                self._idle[block] = None


class Slots:
    """Adapters in an engine; those in use stay, of the rest the longest unused goes. They are loaded one by one."""

    def __init__(self, slots: int) -> None:
        self._most = slots
        self._resident: OrderedDict[str, float] = OrderedDict()
        self._uses: dict[str, int] = {}
        self._free_at = 0.0
        self.loads = 0

    def names(self) -> frozenset[str]:
        """The resident ones."""
        return frozenset(self._resident)

    def take(self, name: str, now: float) -> float | None:
        """Take an adapter into use; when it will be there, or None where every slot is in use."""
        if not name:
            return now
        if name not in self._resident:
            if not self._make_room():
                return None
            self.loads += 1
            self._free_at = max(now, self._free_at) + ADAPTER_S
            self._resident[name] = self._free_at
        self._resident.move_to_end(name)
        self._uses[name] = self._uses.get(name, 0) + 1
        return max(now, self._resident[name])

    def give_back(self, name: str) -> None:
        """End one use."""
        if name:
            self._uses[name] -= 1

    def _make_room(self) -> bool:
        if len(self._resident) < self._most:
            return True
        idle = next((name for name in self._resident if not self._uses.get(name)), None)
        if idle is not None:
            del self._resident[idle]
        return idle is not None


@dataclass
class _Sequence:
    served: Served
    router: int
    tokens_left: int = 0


class Replica:
    """One engine. `run` is called when a step may begin, and tells when the next one may."""

    def __init__(self, name: str, shape: Shape, finish: Callable[[_Sequence, Replica], None]) -> None:
        self.name = name
        self.slots = Slots(shape.slots)
        self.work_of = [0] * shape.routers
        self.requests = 0
        self.done = 0
        self.is_running = False
        self._cache = KvCache(shape.kv_tokens // BLOCK)
        self._most = shape.sequences
        self._finish = finish
        self._waiting: deque[_Sequence] = deque()
        self._loading: list[tuple[float, int, _Sequence]] = []
        self._reading: deque[_Sequence] = deque()
        self._decoding: list[tuple[int, int, _Sequence]] = []
        self._step = 0
        self._order = count()

    def add(self, sequence: _Sequence) -> None:
        """A request arrives."""
        self.requests += 1
        self.work_of[sequence.router] += sequence.served.turn.request.work
        self._waiting.append(sequence)

    def run(self, now: float) -> float | None:
        """One step: admit, read, decode. When it ends, or None where there is nothing to do."""
        self._admit(now)
        read, first = self._read()
        if not read and not self._decoding:
            return self._loading[0][0] if self._loading else None
        end = now + STEP_S + SEQUENCE_S * len(self._decoding) + TOKEN_S * read
        self._step += 1
        while self._decoding and self._decoding[0][0] <= self._step:
            self._end(heapq.heappop(self._decoding)[2])
        for sequence in first:
            sequence.served.first_token = end - sequence.served.turn.at
            last = self._step + len(sequence.served.turn.answer) * BLOCK
            heapq.heappush(self._decoding, (last, next(self._order), sequence))
        return end

    def _admit(self, now: float) -> None:
        busy = len(self._reading) + len(self._decoding) + len(self._loading)
        held: list[_Sequence] = []
        while self._waiting and busy < self._most:
            sequence = self._waiting.popleft()
            turn = sequence.served.turn
            ready = self.slots.take(turn.request.adapter, now)
            if ready is None:
                held.append(sequence)
                continue
            heapq.heappush(self._loading, (ready, next(self._order), sequence))
            busy += 1
        self._waiting.extendleft(reversed(held))
        while self._loading and self._loading[0][0] <= now:
            sequence = self._loading[0][2]
            turn = sequence.served.turn
            hits = self._cache.take(turn.prompt, turn.answer)
            if hits is None:
                return
            heapq.heappop(self._loading)
            sequence.served.hits = hits
            sequence.tokens_left = (len(turn.prompt) - hits) * BLOCK
            self._reading.append(sequence)

    def _read(self) -> tuple[int, list[_Sequence]]:
        room, first = STEP_TOKENS, []
        while self._reading and room:
            part = min(room, self._reading[0].tokens_left)
            room -= part
            self._reading[0].tokens_left -= part
            if not self._reading[0].tokens_left:
                first.append(self._reading.popleft())
        return STEP_TOKENS - room, first

    def _end(self, sequence: _Sequence) -> None:
        turn = sequence.served.turn
        self._cache.give_back(turn.prompt, turn.answer)
        self.slots.give_back(turn.request.adapter)
        self.requests -= 1
        self.done += turn.request.work
        self.work_of[sequence.router] -= turn.request.work
        self._finish(sequence, self)


@dataclass
class Outcome:
    """What a run gave."""

    served: list[Served] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    imbalances: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Blocks that were found, of those that one cache without end would have had."""
        return sum(one.hits for one in self.served) / max(1, sum(one.reusable for one in self.served))

    @property
    def imbalance(self) -> float:
        """The most outstanding work of a replica over the mean, averaged over arrivals."""
        return sum(self.imbalances) / max(1, len(self.imbalances))

    @property
    def loads(self) -> int:
        """Adapters that were loaded."""
        return sum(replica.slots.loads for replica in self.replicas)

    def first_token(self, share: float) -> float:
        """Seconds to the first token: the mean for 0, else that quantile."""
        times = sorted(one.first_token for one in self.served)
        return times[int(share * len(times))] if share else sum(times) / len(times)


class Fleet:
    """Replicas behind routers that know of each other only what replicas tell."""

    def __init__(self, shape: Shape, make_policy: Callable[[Fleet], Policy], seed: int = 0) -> None:
        self.replicas = [Replica(f"replica-{index}", shape, self._finished) for index in range(shape.replicas)]
        self.now = 0.0
        self._named = {one.name: one for one in self.replicas}
        self._shortlists = Shortlists(self._named)
        self._shape = shape
        self._random = random.Random(seed)
        self._candidates = [
            {one.name: Candidate(one.name, 2 * shape.sequences, adapter_slots=shape.slots) for one in self.replicas}
            for _ in range(shape.routers)
        ]
        self._policies = [make_policy(self) for _ in range(shape.routers)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._seen: set[int] = set()
        self._open = 0
        self._outcome = Outcome(replicas=self.replicas)

    def serve(self, turns: Sequence[Turn]) -> Outcome:
        """All turns, and those that follow them, to the end."""
        for turn in turns:
            self._expect(turn)
        for router in range(self._shape.routers):
            for index, one in enumerate(self.replicas):
                phase = self._shape.told_every * (index / len(self.replicas) + router / self._shape.routers)
                self.at(phase, partial(self._tell, router, one))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self._outcome

    def renew(self, router: int, policy: Policy) -> None:
        """Start a router anew: it knows nothing but its candidates."""
        self._policies[router] = policy

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (when, next(self._order), event))

    def _expect(self, turn: Turn) -> None:
        self._open += 1
        self.at(turn.at, lambda: self._arrive(turn))

    def _arrive(self, turn: Turn) -> None:
        router = self._random.randrange(self._shape.routers)
        chosen = self._choose(turn.request, self._candidates[router], self._policies[router])
        self._policies[router].on_sent(turn.request, chosen)
        chosen.requests += 1
        chosen.work += turn.request.work
        replica = self._named[chosen.id]
        served = Served(turn, self._reusable(turn))
        self._outcome.served.append(served)
        replica.add(_Sequence(served, router))
        works = [sum(one.work_of) for one in self.replicas]
        self._outcome.imbalances.append(max(works) * len(works) / sum(works))
        if not replica.is_running:
            self._step(replica)

    def _choose(self, request: RoutingRequest, known: Mapping[str, Candidate], policy: Policy) -> Candidate:
        """As a router does (`ReplicaSet`)."""
        candidates = list(known.values())
        if len(known) > 2 * SHORTLIST:
            listed = [known[one] for one in self._shortlists.ids(policy.key(request, len(known)))]
            candidates = [one for one in listed if one.requests < one.capacity] or candidates
        return policy.choose(
            request, [one for one in candidates if one.requests < one.capacity] or candidates, len(known)
        )

    def _reusable(self, turn: Turn) -> int:
        reusable = 0
        while reusable < len(turn.prompt) - 1 and turn.prompt[reusable] in self._seen:
            reusable += 1
        self._seen.update(turn.prompt, turn.answer)
        return reusable

    def _step(self, replica: Replica) -> None:
        end = replica.run(self.now)
        replica.is_running = end is not None
        if end is not None:
            self.at(end, lambda: self._step(replica))

    def _finished(self, sequence: _Sequence, replica: Replica) -> None:
        self._open -= 1
        turn = sequence.served.turn
        candidate = self._candidates[sequence.router][replica.name]
        candidate.requests -= 1
        candidate.work -= turn.request.work
        if turn.then is not None:
            self._expect(replace(turn.then, at=self.now + turn.pause))

    def _tell(self, router: int, replica: Replica) -> None:
        candidate = self._candidates[router][replica.name]
        candidate.others = sum(replica.work_of) - replica.work_of[router]
        candidate.adapters = replica.slots.names()
        if self._open:
            self.at(self.now + self._shape.told_every, lambda: self._tell(router, replica))
