"""Policies under load, on a simulated fleet of four replicas: what benchmarks/routing.py publishes, in small."""

from __future__ import annotations

import random

import pytest

from benchmarks import traffic
from benchmarks.fleet import Fleet, Outcome, Shape, Turn
from benchmarks.routing import fewest_loads, loads_of_one_engine, policies


@pytest.fixture(scope="module")
def chats() -> list[Turn]:
    return traffic.chats(number=120)


def served(turns: list[Turn], name: str, routers: int = 4) -> Outcome:
    random.seed(1)
    return Fleet(Shape(routers=routers), policies()[name]).serve(turns)


@pytest.mark.parametrize("routers", [1, 4])
def test_chats_find_what_was_read_before(chats: list[Turn], routers: int) -> None:
    assert served(chats, "prefix_aware", routers).hit_rate > 0.97 > 0.85 > served(chats, "least_loaded").hit_rate


def test_a_router_that_starts_anew_finds_running_conversations(chats: list[Turn]) -> None:
    fleet = Fleet(Shape(routers=4), policies()["prefix_aware"])
    for second in range(100):
        fleet.at(second, lambda second=second: fleet.renew(second % 4, policies()["prefix_aware"](fleet)))  # type: ignore[misc]
    assert fleet.serve(chats).hit_rate > 0.97


def test_questions_find_their_documents_and_tenants_their_prompts() -> None:
    assert served(traffic.documents(number=300), "prefix_aware").hit_rate > 0.85
    assert served(traffic.tenants(number=200), "prefix_aware").hit_rate > 0.9


def test_no_reuse_costs_nothing() -> None:
    turns = traffic.singles(number=1500)
    aware, least = served(turns, "prefix_aware"), served(turns, "least_loaded")
    assert aware.first_token(0) < 1.1 * least.first_token(0)


def test_routers_with_old_news_do_not_herd() -> None:
    turns = traffic.singles(number=1500)
    random.seed(1)
    stale = Fleet(Shape(routers=4, told_every=5.0), policies()["least_loaded"]).serve(turns)
    assert stale.imbalance < 1.13 < 1.3 < served(turns, "random").imbalance
    assert stale.first_token(0) < 1.1 * served(turns, "least_loaded").first_token(0)


def test_adapters_are_loaded_no_more_often_than_by_one_engine_with_all_slots() -> None:
    turns = traffic.adapted(number=1500)
    one_engine = loads_of_one_engine([turn.request.adapter for turn in turns], 64)
    ours = served(turns, "least_loaded")
    assert ours.loads < 1.15 * one_engine
    assert ours.loads < 0.4 * served(turns, "random").loads


def test_the_bound_on_loads_is_that_of_who_knows_the_future() -> None:
    assert fewest_loads(list("abcabc"), 3) == 3
    assert fewest_loads(list("abcabd"), 2) == 5
    assert loads_of_one_engine(list("abcabd"), 2) == 6
    assert fewest_loads([], 2) == loads_of_one_engine([], 2) == 0
