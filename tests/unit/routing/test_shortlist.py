"""Shortlists of many replicas."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks import traffic
from benchmarks.fleet import Fleet, Outcome, Shape, Turn
from rayllm.routing import create_policy
from rayllm.routing.shortlist import SHORTLIST, Shortlists, list_key

NAMES = [f"replica-{number}" for number in range(100)]


def test_routers_agree_on_the_replicas_of_a_key() -> None:
    one, other = Shortlists(NAMES), Shortlists(NAMES[::-1])
    for key in range(2**64 // 100, 2**64, 2**64 // 100):
        assert one.ids(key) == other.ids(key)
        assert len(set(one.ids(key))) == SHORTLIST


def test_a_replica_that_goes_changes_a_shortlist_by_one() -> None:
    before, after = Shortlists(NAMES), Shortlists(NAMES[1:])
    for key in range(2**64 // 100, 2**64, 2**64 // 100):
        assert len(set(before.ids(key)) - set(after.ids(key))) == (NAMES[0] in before.ids(key))


def test_without_a_key_every_replica_has_its_turn() -> None:
    lists = Shortlists(NAMES)
    assert {one for _ in range(1000) for one in lists.ids(0)} == set(NAMES)


def test_keys_are_spread_over_the_replicas() -> None:
    lists, chance = Shortlists(NAMES), random.Random(1)
    counts = Counter(one for _ in range(4000) for one in lists.ids(chance.getrandbits(64)))
    mean = 4000 * SHORTLIST / len(NAMES)
    assert 0.6 * mean < min(counts.values()) <= max(counts.values()) < 1.5 * mean


def test_what_a_shortlist_cannot_carry_has_several() -> None:
    def lists(share: float, replicas: int) -> int:
        return len({list_key(7, part, share, replicas) for part in range(1000)})

    assert [lists(0.01, 800), lists(0.011, 800), lists(0.1, 800), lists(1, 800)] == [1, 2, 16, 128]
    kept = [list_key(7, part, 0.01, 800) == list_key(7, part, 0.011, 800) for part in range(10)]
    assert kept == [True, False] * 5


def test_few_replicas_are_all_listed_once() -> None:
    assert sorted(Shortlists(NAMES[:3]).ids(2**63)) == NAMES[:3]


@pytest.fixture(scope="module")
def chats() -> list[Turn]:
    return traffic.chats(number=400, rate=100)


def served(turns: list[Turn], name: str) -> Outcome:
    random.seed(1)
    return Fleet(Shape(replicas=80, routers=4), lambda _: create_policy(name)).serve(turns)


def test_conversations_stay_with_a_replica_of_many(chats: list[Turn]) -> None:
    assert served(chats, "prefix_aware").hit_rate > 0.9 > 0.6 > served(chats, "least_loaded").hit_rate
    assert served(chats, "session").hit_rate > 0.9


def test_an_adapter_that_everybody_asks_for_spreads_over_more_than_a_shortlist() -> None:
    turns = traffic.adapted(number=8000, rate=8000)
    for turn in turns:
        turn.request = turn.request.with_target("popular", "")
    replicas = served(turns, "least_loaded").replicas
    assert sum("popular" in replica.slots.names() for replica in replicas) > SHORTLIST
