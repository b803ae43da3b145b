"""Limits of keys, with several routers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rayllm.access import Caller
from rayllm.access.limits import FIELDS
from rayllm.access.quota import Lease, Quota
from rayllm.core.errors import RateLimitError
from rayllm.core.request_stats import RequestStats
from rayllm.serving.cluster.state.quota_registry import Change
from rayllm.serving.router.access.rate_limiter import RateLimiter, TokenEstimates
from rayllm.serving.router.requests.demand import Demand


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class LocalRegistry:
    """Quotas in this process, for several routers. `calls` counts how often it was asked for a lease.

    `reports` counts how often it was told anything else.
    """

    def __init__(self, clock: Callable[[], float], routers: int) -> None:
        self.quotas: dict[str, Quota] = {}
        self.calls = self.reports = 0
        self._clock = clock
        self._routers = routers

    def of(self, router: str) -> Any:
        """The registry for one router."""
        registry = self

        class Own:
            async def lease(self, key: str, limits: Any, need: Any, want: Any, released: list[Change]) -> Lease:
                registry.calls += 1
                await asyncio.sleep(0)
                self._use(released)
                quota = registry.quotas.setdefault(key, Quota())
                return quota.lease(registry._clock(), router, limits, need, want, registry._routers)

            async def settle(self, changes: list[Change], in_progress: Any = None) -> None:
                registry.reports += 1
                self._use(changes)

            def _use(self, changes: list[Change]) -> None:
                for key, kind, amount, age_s in changes:
                    registry.quotas.setdefault(key, Quota()).use(registry._clock(), router, kind, amount, age_s)

        return Own()


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
async def test_limits_hold_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    limiter = RateLimiter(LocalRegistry(time.monotonic, 1).of("0"))
    caller, at = Caller("alice", limits={"requests": 2}), time.time
    await limiter.admit(caller, 1)
    monkeypatch.setattr(time, "time", lambda: at() + jump_s)
    await limiter.admit(caller, 1)
    with pytest.raises(RateLimitError) as refused:
        await limiter.admit(caller, 1)
    assert 1 <= int(refused.value.reply_headers["retry-after"]) <= 61
    await limiter.close()


class Routers:
    """Routers that share quotas."""

    def __init__(self, count: int) -> None:
        self.clock = Clock()
        self.registry = LocalRegistry(self.clock, count)
        self.all = [RateLimiter(self.registry.of(str(index)), self.clock) for index in range(count)]

    async def period(self) -> None:
        """What each router does every second."""
        for router in self.all:
            router._release(list(router._leased.items()))
            await router._flush()


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests call them, by their own clock.
    monkeypatch.setattr(RateLimiter, "_report", lambda self: asyncio.Event().wait())


def caller(**limits: int) -> Caller:
    return Caller("alice", "alice", limits={kind: limits[name] for kind, name in FIELDS.items() if name in limits})


async def test_a_key_without_limits_costs_no_call() -> None:
    routers = Routers(1)
    admission = await routers.all[0].admit(Caller("alice"), 10)
    assert (admission.headers, routers.registry.calls) == ({}, 0)
    admission.settle(5)


async def test_what_keeps_the_quotas_starts_before_a_request_needs_it() -> None:
    routers = Routers(1)
    routers.all[0].prepare()
    await asyncio.sleep(0)
    assert routers.registry.reports == 1


async def test_headers_tell_what_is_left() -> None:
    routers = Routers(1)
    alice = caller(requests_per_minute=3, tokens_per_minute=100)
    first = await routers.all[0].admit(alice, 40)
    theirs = {name: value for name, value in first.headers.items() if name.startswith("anthropic-")}
    resets = [theirs.pop(f"anthropic-ratelimit-{what}-reset") for what in ("requests", "tokens")]
    assert all(datetime.fromisoformat(reset) > datetime.now(UTC) for reset in resets)
    assert theirs == {
        "anthropic-ratelimit-requests-limit": "3",
        "anthropic-ratelimit-requests-remaining": "2",
        "anthropic-ratelimit-tokens-limit": "100",
        "anthropic-ratelimit-tokens-remaining": "60",
    }
    ours = {name: value for name, value in first.headers.items() if not name.startswith("anthropic-")}
    assert ours == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "1m1s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "60",
        "x-ratelimit-reset-tokens": "1m1s",
    }
    first.settle(30)
    await routers.period()
    second = await routers.all[0].admit(alice, 40)
    assert second.headers["x-ratelimit-remaining-tokens"] == "30"
    assert (await routers.all[0].admit(alice, 1)).headers["x-ratelimit-remaining-requests"] == "0"
    routers.clock.now += 20
    with pytest.raises(RateLimitError) as refused:
        await routers.all[0].admit(alice, 1)
    assert refused.value.message == "The key is limited to 3 requests a minute. Try again in 41s."
    headers = refused.value.headers()
    assert (headers["retry-after"], headers["x-ratelimit-remaining-requests"]) == ("41", "0")
    routers.clock.now += 41
    assert await routers.all[0].admit(alice, 1)


async def test_of_two_limits_on_tokens_the_lower_one_is_shown() -> None:
    routers = Routers(1)
    admission = await routers.all[0].admit(caller(tokens_per_minute=100, tokens_per_day=90), 10)
    assert admission.headers["x-ratelimit-limit-tokens"] == "90"
    assert admission.headers["x-ratelimit-reset-tokens"].startswith("24h")


async def test_a_request_that_is_too_large_is_not_sent_again() -> None:
    with pytest.raises(RateLimitError) as refused:
        await Routers(1).all[0].admit(caller(tokens_per_minute=100), 101)
    assert "may use 101 tokens, and its key is limited to 100 tokens a minute; lower `max_tokens`" in str(refused.value)
    assert refused.value.headers()["x-should-retry"] == "false"
    assert "retry-after" not in refused.value.headers()


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("seed", range(3))
async def test_routers_together_grant_the_limit_and_no_more(count: int, seed: int) -> None:
    """For five minutes, ten times what is allowed is sent to routers by chance; every tenth answer is shorter."""
    chance, routers, limit = random.Random(seed), Routers(count), 600
    alice, granted = caller(requests_per_minute=limit), []
    for step in range(5 * 60 * 10):
        routers.clock.now += 0.1
        for _ in range(10):
            try:
                await chance.choice(routers.all).admit(alice, 1)
                granted.append(routers.clock.now)
            except RateLimitError:
                pass
        if step % 10 == 9:
            await routers.period()
    most = max(sum(1 for at in granted if start < at <= start + 60) for start in granted[:: len(granted) // 50])
    assert most <= limit
    # Nothing stays unused that others lack. A window counts for up to 61 seconds.
    assert len(granted) >= 0.98 * limit * 300 / 61


@pytest.mark.parametrize("count", [1, 4])
async def test_tokens_that_were_reserved_in_vain_are_free_again(count: int) -> None:
    chance, routers, used = random.Random(count), Routers(count), 0
    alice = caller(tokens_per_minute=10_000)
    for _ in range(1000):
        routers.clock.now += 0.05
        try:
            admission = await chance.choice(routers.all).admit(alice, 500)
        except RateLimitError:
            break
        admission.settle(20)
        used += 20
        await routers.period()
    assert 10_000 - 500 * (1 + count) <= used <= 10_000


async def test_so_many_requests_at_once() -> None:
    routers = Routers(2)
    alice = caller(max_concurrent=2)
    first, second = [await router.admit(alice, 1) for router in routers.all]
    for router in routers.all:
        with pytest.raises(RateLimitError, match="limited to 2 requests at once"):
            await router.admit(alice, 1)
    first.settle(None)
    await asyncio.sleep(0.01)
    third = await routers.all[1].admit(alice, 1)
    for admission in (second, third):
        admission.settle(1)
    await asyncio.sleep(0.01)
    assert routers.registry.quotas["alice"].is_idle(routers.clock())


async def test_what_is_granted_to_a_client_that_has_left_is_released() -> None:
    routers = Routers(1)
    leaving = asyncio.create_task(routers.all[0].admit(caller(max_concurrent=1, requests_per_minute=1), 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0.01)
    assert leaving.cancelled()
    await routers.period()
    assert routers.registry.quotas["alice"].is_idle(routers.clock())


async def test_most_requests_need_no_call() -> None:
    routers = Routers(4)
    alice = caller(requests_per_minute=100_000, tokens_per_minute=10**9)
    for step in range(2000):
        routers.clock.now += 0.005
        await routers.all[step % 4].admit(alice, 100)
    assert routers.registry.calls < 2000 * 0.05


async def test_a_closed_router_gives_back_what_it_did_not_use() -> None:
    routers = Routers(1)
    alice = caller(requests_per_minute=100)
    for _ in range(5):
        routers.clock.now += 0.01
        await routers.all[0].admit(alice, 1)
    await routers.all[0].close()
    [quota] = routers.registry.quotas.values()
    assert sum(amount for _, amount in quota.state(routers.clock())["requests"]) == 5


LIMITED, UNLIMITED = Demand(100, answer_limit=10), Demand(100)


def test_estimates_are_learned() -> None:
    estimates = TokenEstimates()
    assert estimates.tokens("t", "m", LIMITED) == 1 + 25 + 10
    assert estimates.tokens("t", "m", UNLIMITED) == 1 + 25 + 256
    for _ in range(100):
        estimates.learn("t", "m", UNLIMITED, RequestStats(prompt_tokens=50, generated_tokens=400, answers=1))
    assert estimates.tokens("t", "m", LIMITED) in (60, 61)
    assert 449 <= estimates.tokens("t", "m", UNLIMITED) <= 451


def test_answers_are_estimated_one_by_one() -> None:
    estimates, many = TokenEstimates(), Demand(answers=128)
    assert estimates.tokens("t", "m", many) == 1 + 128 * 256
    for _ in range(100):
        estimates.learn("t", "m", many, RequestStats(generated_tokens=128 * 300, answers=128))
    assert estimates.tokens("t", "m", Demand()) in (300, 301)
    assert estimates.tokens("t", "m", Demand(answers=0, answer_limit=0)) == 1


def test_one_request_moves_estimates_only_within_bounds() -> None:
    estimates = TokenEstimates()
    estimates.learn("t", "m", UNLIMITED, RequestStats(10**6, generated_tokens=10**6, answers=1))
    assert estimates.tokens("t", "m", UNLIMITED) < 2 * (1 + 25 + 256)
    for _ in range(1000):
        estimates.learn("t", "m", UNLIMITED, RequestStats(1, generated_tokens=1, answers=1))
    assert estimates.tokens("t", "m", UNLIMITED) >= (25 + 256) / 4


def test_answers_that_a_limit_or_the_client_cut_off_teach_nothing() -> None:
    estimates = TokenEstimates()
    for _ in range(100):
        estimates.learn("t", "m", Demand(answer_limit=1), RequestStats(generated_tokens=1, answers=1))
        cut = RequestStats(generated_tokens=1, answers=1, finish_reason="abort")
        estimates.learn("t", "m", Demand(), cut)
    assert estimates.tokens("t", "m", Demand()) == 1 + 256


def test_the_estimates_of_tenants_are_separate() -> None:
    estimates = TokenEstimates()
    for _ in range(100):
        estimates.learn("busy", "m", UNLIMITED, RequestStats(9000, generated_tokens=9000, answers=1))
    assert estimates.tokens("busy", "m", UNLIMITED) > 9000
    assert estimates.tokens("other", "m", UNLIMITED) == estimates.tokens("busy", "n", UNLIMITED) == 1 + 25 + 256
