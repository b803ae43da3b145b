"""Limits of keys: admits requests within what this router has leased of each quota."""

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from rayllm.access import Caller
from rayllm.access.limits import UNITS, Amounts, Kind
from rayllm.access.quota import Lease
from rayllm.core.errors import RateLimitError
from rayllm.core.request_stats import RequestStats
from rayllm.serving.cluster.background import in_background
from rayllm.serving.cluster.state.quota_registry import Change, QuotaRegistry
from rayllm.serving.router.requests.demand import Demand

# Seconds between reports, and after which an unused lease is released.
_PERIOD_S = 1.0
# Seconds for which a refusal is repeated without a new call.
_REFUSED_S = 0.1
# Estimates before the first request.
_TOKENS_PER_BYTE = 0.25
_TYPICAL_ANSWER = 256
# Weight of the latest request in averages, and most averages kept.
_WEIGHT = 0.1
_MAX_AVERAGES = 10_000


@dataclass
class Admission:
    """An admitted request: `x-ratelimit-…` headers, and a function to call at its end with the tokens used."""

    headers: dict[str, str] = field(default_factory=dict)
    settle: Callable[[int | None], None] = lambda tokens: None


@dataclass
class _Leased:
    """This router's leases of one key's quota.

    Attributes:
        spare: amounts leased and not used.
        used: amounts used since the last lease.
        since: time of the last lease.
        last: the last lease, or the last refusal.
        refused_until: time until which a refusal is repeated.
        refused_need: amounts that were refused.
    """

    spare: dict[Kind, int] = field(default_factory=dict)
    used: dict[Kind, int] = field(default_factory=dict)
    since: float = 0.0
    last: Lease = field(default_factory=lambda: Lease({}))
    refused_until: float = 0.0
    refused_need: dict[Kind, int] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class RateLimiter:
    """Admits the requests of one router by the limits of their keys."""

    def __init__(self, registry: QuotaRegistry, now: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._now = now
        self._leased: dict[str, _Leased] = {}
        self._changes: list[Change] = []
        self._in_progress: Counter[str] = Counter()  # by key
        self._reporting: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Start the actor of the quotas before the first request needs it."""
        in_background(self._registry.settle([]))

    async def admit(self, caller: Caller, tokens: int) -> Admission:
        """Reserve what a request needs. Raises RateLimitError at a limit, and UnavailableError without an answer."""
        limits = caller.limits
        if not limits:
            return Admission()
        if self._reporting is None:
            self._reporting = in_background(self._report())
        amounts: dict[Kind, int] = {"requests": 1, "tokens": tokens, "tokens_per_day": tokens, "concurrent": 1}
        need = {kind: amounts[kind] for kind in limits}
        leased = self._leased.setdefault(caller.name, _Leased())
        if not self._reserve(leased, need):
            async with leased.lock:
                if not self._reserve(leased, need):
                    await self._lease(caller.name, leased, limits, need)
        if "concurrent" in need:
            self._in_progress[caller.name] += 1
        return Admission(_headers(limits, leased, self._now()), self._settler(caller.name, need))

    async def close(self) -> None:
        if self._reporting:
            self._reporting.cancel()
            self._release(self._leased.items())
            await self._registry.settle(self._changes)

    def _reserve(self, leased: _Leased, need: Amounts) -> bool:
        """Reserve what a request needs, if enough is leased."""
        if any(leased.spare.get(kind, 0) < amount for kind, amount in need.items()):
            return False
        for kind, amount in need.items():
            leased.spare[kind] -= amount
            leased.used[kind] = leased.used.get(kind, 0) + amount
        return True

    async def _lease(self, name: str, leased: _Leased, limits: Amounts, need: Amounts) -> None:
        now = self._now()
        if now < leased.refused_until and all(need[kind] >= leased.refused_need.get(kind, 0) for kind in need):
            raise _error(limits, need, leased, now)
        released = self._spare_changes(name, leased)
        # As much as was used in the last period. Concurrent requests are never leased in advance.
        elapsed = max(now - leased.since, _PERIOD_S / 100)
        want: Amounts = {
            kind: int(used / elapsed * _PERIOD_S) for kind, used in leased.used.items() if kind != "concurrent"
        }
        leased.spare, leased.used = {}, {}
        asked = in_background(self._registry.lease(name, limits, need, want, released))
        try:
            # Shielded: a lease for a client that has left is released.
            lease = leased.last = await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(partial(self._release_lease, name))
            raise
        leased.since = self._now()
        if lease.granted is None:
            if lease.limited != "concurrent":
                leased.refused_until, leased.refused_need = leased.since + _REFUSED_S, dict(need)
            raise _error(limits, need, leased, leased.since)
        leased.spare = dict(lease.granted)
        self._reserve(leased, need)

    def _settler(self, name: str, need: Amounts) -> Callable[[int | None], None]:
        admitted_at = self._now()

        def settle(tokens: int | None) -> None:
            age_s = self._now() - admitted_at
            for kind, reserved in need.items():
                if kind in ("tokens", "tokens_per_day") and tokens is not None and tokens != reserved:
                    self._changes.append(Change(name, kind, tokens - reserved, age_s))
            if "concurrent" in need:
                self._in_progress[name] -= 1
                self._changes.append(Change(name, "concurrent", -1, age_s))
                # At once: the client's next request may be on its way to another router.
                in_background(self._flush())

        return settle

    def _release_lease(self, name: str, asked: asyncio.Task[Lease]) -> None:
        granted = asked.result().granted if not asked.cancelled() and asked.exception() is None else None
        self._changes += [Change(name, kind, -amount, 0.0) for kind, amount in (granted or {}).items()]

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            now = self._now()
            old = [(name, leased) for name, leased in self._leased.items() if leased.since <= now - _PERIOD_S]
            self._release(old)
            for name, leased in old:
                if not leased.lock.locked():
                    del self._leased[name]
            self._in_progress = +self._in_progress
            await self._flush(self._in_progress)

    def _release(self, entries: Iterable[tuple[str, _Leased]]) -> None:
        for name, leased in entries:
            self._changes += self._spare_changes(name, leased)
            leased.spare = {}

    def _spare_changes(self, name: str, leased: _Leased) -> list[Change]:
        age_s = self._now() - leased.since
        return [Change(name, kind, -amount, age_s) for kind, amount in leased.spare.items() if amount]

    async def _flush(self, in_progress: Mapping[str, int] | None = None) -> None:
        changes, self._changes = self._changes, []
        await self._registry.settle(changes, in_progress)


def _headers(limits: Amounts, leased: _Leased, now: float) -> dict[str, str]:
    """The headers of OpenAI's and Anthropic's APIs; of two limits on tokens, the limit with less left.

    Sources: https://platform.openai.com/docs/guides/rate-limits, https://docs.anthropic.com/en/api/rate-limits
    """
    left = {kind: leased.last.remaining.get(kind, 0) + leased.spare.get(kind, 0) for kind in limits}
    resets = {kind: max(0.0, reset - (now - leased.since)) for kind, reset in leased.last.reset_s.items()}
    by_name: dict[str, Kind] = {"requests": "requests"} if "requests" in limits else {}
    if on_tokens := [kind for kind in ("tokens", "tokens_per_day") if kind in limits]:
        by_name["tokens"] = min(on_tokens, key=lambda kind: left[kind])  # type: ignore[arg-type]
    headers = dict[str, str]()
    for name, kind in by_name.items():
        reset_s = math.ceil(resets.get(kind, 0.0))
        values = {"limit": limits[kind], "remaining": left[kind], "reset": _duration(reset_s)}
        headers |= {f"x-ratelimit-{what}-{name}": str(value) for what, value in values.items()}
        values["reset"] = f"{datetime.now(UTC) + timedelta(seconds=reset_s):%Y-%m-%dT%H:%M:%SZ}"
        headers |= {f"anthropic-ratelimit-{name}-{what}": str(value) for what, value in values.items()}
    return headers


def _duration(seconds: float) -> str:
    """A duration such as `1m5s`, rounded up."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "m"), (rest, "s")]
    first = next((index for index, (amount, _) in enumerate(parts) if amount), 2)
    return "".join(f"{amount}{unit}" for amount, unit in parts[first:])


def _error(limits: Mapping[Kind, int], need: Amounts, leased: _Leased, now: float) -> RateLimitError:
    lease, kind = leased.last, leased.last.limited or "requests"
    headers, what = _headers(limits, leased, now), f"{limits[kind]:,} {UNITS[kind]}"
    if math.isinf(lease.retry_after_s):
        message = (
            f"The request may use {need[kind]:,} tokens, and its key is limited to {what}; lower `max_tokens`, `n` or "
            "the number of prompts."
        )
        return RateLimitError(message, reply_headers=headers | {"x-should-retry": "false"})
    wait_s = max(1, math.ceil(lease.retry_after_s - (now - leased.since)))
    message = f"The key is limited to {what}. Try again in {_duration(wait_s)}."
    return RateLimitError(message, reply_headers=headers | {"retry-after": str(wait_s)})


@dataclass
class _Averages:
    """Averages of one tenant's requests to one model: tokens of a prompt for each byte, and tokens of an answer."""

    tokens_per_byte: float = _TOKENS_PER_BYTE
    answer: float = _TYPICAL_ANSWER


class TokenEstimates:
    """Estimated tokens of requests, learned by tenant and model."""

    def __init__(self) -> None:
        self._averages: OrderedDict[tuple[str, str], _Averages] = OrderedDict()

    def tokens(self, tenant: str, model_id: str, demand: Demand) -> int:
        """Tokens of prompts and answers; of an answer its limit, or the average without a limit."""
        averages = self._averages_of(tenant, model_id)
        answer = averages.answer if demand.answer_limit is None else demand.answer_limit
        return 1 + int(demand.prompt_bytes * averages.tokens_per_byte + demand.answers * answer)

    def learn(self, tenant: str, model_id: str, demand: Demand, stats: RequestStats) -> None:
        averages = self._averages_of(tenant, model_id)
        if demand.answer_limit is None and stats.answers and stats.finish_reason != "abort":
            averages.answer = _moved(averages.answer, stats.generated_tokens / stats.answers, _TYPICAL_ANSWER)
        if demand.prompt_bytes:
            ratio = stats.prompt_tokens / demand.prompt_bytes
            averages.tokens_per_byte = _moved(averages.tokens_per_byte, ratio, _TOKENS_PER_BYTE)

    def _averages_of(self, tenant: str, model_id: str) -> _Averages:
        averages = self._averages.setdefault((tenant, model_id), _Averages())
        self._averages.move_to_end((tenant, model_id))
        if len(self._averages) > _MAX_AVERAGES:
            self._averages.popitem(last=False)
        return averages


def _moved(average: float, latest: float, first: float) -> float:
    """Move an average by one request, within bounds: a single request cannot make it useless."""
    return average + _WEIGHT * (min(max(latest, first / 4), 4 * max(average, first)) - average)
