"""Windows and quotas."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from rayllm.access.quota import Lease, Quota, SlidingWindow


def test_what_was_used_counts_for_a_minute() -> None:
    window = SlidingWindow(60)
    window.add(0.5, 3)
    window.add(30, 4)
    assert [window.used(now) for now in (0.5, 59, 60.5, 61, 90.9, 91)] == [7, 7, 7, 4, 4, 0]


def test_what_is_released_is_subtracted_at_its_own_time() -> None:
    window = SlidingWindow(60)
    window.add(0, 3)
    window.add(20, 4)
    window.add(40, -2, age_s=20)
    assert [window.used(now) for now in (40, 61.5, 82)] == [5, 2, 0]
    window.add(100, -1, age_s=80)
    assert window.used(100) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_stretch_of_a_minute_has_more_than_the_window_shows(seed: int) -> None:
    chance = random.Random(seed)
    window, used, now = SlidingWindow(60), [], 0.0
    for _ in range(500):
        now += chance.expovariate(1)
        amount = chance.randint(1, 9)
        used.append((now, amount))
        window.add(now, amount)
        assert sum(each for at, each in used if at > now - 60) <= window.used(now)
        assert sum(each for at, each in used if at > now - 62) >= window.used(now)


@pytest.mark.parametrize("seed", range(20))
def test_so_long_it_takes_until_an_amount_is_free(seed: int) -> None:
    chance = random.Random(seed)
    window, now = SlidingWindow(60), 0.0
    for _ in range(100):
        now += chance.expovariate(1)
        window.add(now, chance.randint(1, 9))
    total = window.used(now)
    for amount in (1, total // 2, total):
        wait_s = window.wait_s(now, amount)
        again = SlidingWindow(60)
        for age_s, used in window.state(now):
            again.add(now, used, age_s)
        assert again.used(now + wait_s - 0.01) > total - amount
        assert again.used(now + wait_s) <= total - amount
    assert window.reset_s(now) == window.wait_s(now, total)


LIMITS: Any = {"requests": 10, "tokens": 1000}


def lease(quota: Quota, now: float, requests: int = 1, tokens: int = 1, **options: Any) -> Lease:
    return quota.lease(now, "r", LIMITS, {"requests": requests, "tokens": tokens}, options.pop("want", {}), **options)


def test_a_lease_is_of_all_kinds_or_of_none() -> None:
    quota = Quota()
    assert lease(quota, 0, tokens=900).granted == {"requests": 1, "tokens": 900}
    refused = lease(quota, 10, tokens=200)
    assert (refused.granted, refused.limited) == (None, "tokens")
    assert refused.remaining == {"requests": 9, "tokens": 100}
    assert refused.retry_after_s == pytest.approx(51)
    assert lease(quota, 10, tokens=100).granted
    assert lease(quota, 61, tokens=200).granted


def test_what_can_never_be_granted_says_so() -> None:
    refused = lease(Quota(), 0, tokens=1001)
    assert refused.granted is None
    assert math.isinf(refused.retry_after_s)


def test_more_than_needed_is_leased_only_from_what_is_left_for_others() -> None:
    want: Any = {"requests": 100, "tokens": 100}
    quota = Quota()
    assert lease(quota, 0, want=want).granted == {"requests": 1 + 2, "tokens": 1 + 100}
    assert lease(quota, 0, want=want, routers=4).granted == {"requests": 1, "tokens": 1 + 56}
    assert lease(quota, 0, requests=6).granted
    assert lease(quota, 0).granted is None


def test_requests_in_progress_are_those_of_routers_that_live() -> None:
    quota, limits = Quota(), {"concurrent": 2}
    need: Any = {"concurrent": 1}
    for router in ("a", "b"):
        assert quota.lease(0, router, limits, need, {"concurrent": 9}).granted == {"concurrent": 1}  # type: ignore[arg-type]
    assert quota.lease(0, "a", limits, need, {}).limited == "concurrent"  # type: ignore[arg-type]
    quota.forget("b")
    assert quota.lease(0, "a", limits, need, {}).granted  # type: ignore[arg-type]
    for _ in range(3):
        quota.use(0, "a", "concurrent", -1)
    assert quota.is_idle(0)


def test_a_restored_quota_refuses_what_it_would_have_refused() -> None:
    quota = Quota()
    lease(quota, 100, tokens=600)
    lease(quota, 130, tokens=400)
    restored = Quota()
    restored.restore(5, quota.state(140), elapsed_s=10)  # type: ignore[arg-type]
    assert lease(restored, 5, tokens=1).limited == "tokens"
    # 50 seconds have passed for the first, 20 for the second.
    assert lease(restored, 5 + 12, tokens=600).granted
    assert lease(restored, 5 + 12, tokens=1).limited == "tokens"


def test_requests_in_progress_are_corrected_to_what_their_router_says() -> None:
    quota, limits, need = Quota(), {"concurrent": 2}, {"concurrent": 1}
    for _ in range(2):
        assert quota.lease(0, "a", limits, need, {}).granted  # type: ignore[arg-type]
    # The second may be on its way.
    quota.correct(10, "a", 1)
    assert quota.lease(10, "a", limits, need, {}).granted is None  # type: ignore[arg-type]
    quota.correct(16, "a", 1)
    assert quota.lease(16, "a", limits, need, {}).granted  # type: ignore[arg-type]
    quota.correct(40, "a", 0)
    quota.correct(40, "b", 1)
    assert quota.routers == {"b"}
