"""The replicas that policies choose."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayllm.routing import POLICIES, Candidate, Policy, RoutingRequest, create_policy, routing_request
from rayllm.routing.policies.prefix_aware import PrefixIndex
from rayllm.routing.popularity import Popularity

OPENING = "You work for this tenant, and for no other. " * 250


def fleet(number: int = 4, work: int = 0) -> list[Candidate]:
    return [Candidate(f"replica-{index}", capacity=100, work=work, adapter_slots=2) for index in range(number)]


def first(chooser: Policy, request: RoutingRequest, candidates: list[Candidate]) -> Candidate:
    """Choose, and tell the policy so."""
    chosen = chooser.choose(request, candidates)
    chooser.on_sent(request, chosen)
    return chosen


def conversation(number: int, turns: int = 1, opening: str = "Be brief.") -> RoutingRequest:
    messages = [{"role": "system", "content": opening}, {"role": "user", "content": f"Question {number}?"}]
    for turn in range(1, turns):
        messages += [{"role": "assistant", "content": f"No {turn}."}, {"role": "user", "content": f"And {turn}?"}]
    return routing_request({"messages": messages}, 0).with_target("", f"session-{number}")


candidates_of_any_kind = st.lists(
    st.builds(
        Candidate,
        id=st.text(max_size=3),
        capacity=st.integers(0, 1000),
        work=st.integers(0, 10**7),
        others=st.integers(0, 10**7),
        adapters=st.frozensets(st.sampled_from("abc")),
        adapter_slots=st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda one: one.id,
)
any_request = st.builds(
    lambda prompt, adapter, session: routing_request({"prompt": prompt}, 0).with_target(adapter, session),
    st.text(max_size=20),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "s"]),
)


@given(st.sampled_from(sorted(POLICIES)), candidates_of_any_kind, st.lists(any_request, min_size=1, max_size=8))
def test_every_policy_chooses_a_candidate(
    name: str, candidates: list[Candidate], requests: list[RoutingRequest]
) -> None:
    chooser = create_policy(name)
    for request in requests:
        chosen = chooser.choose(request, candidates)
        assert any(chosen is one for one in candidates)
        chooser.on_sent(request, chosen)
    for candidate in candidates:
        chooser.on_removed(candidate.id)


def test_requests_without_affinity_go_to_the_least_loaded() -> None:
    candidates = fleet(work=5000)
    candidates[2].work = 10
    for name in POLICIES:
        assert create_policy(name).choose(RoutingRequest(), candidates) is candidates[2]


def test_load_is_counted_by_what_a_replica_can_take() -> None:
    small, large = Candidate("small", capacity=10, work=1000), Candidate("large", capacity=100, work=2000)
    assert create_policy("least_loaded").choose(RoutingRequest(), [small, large]) is large


def test_routers_that_read_the_same_old_news_do_not_herd() -> None:
    # By the news the first replica is idle, and could take all that four routers send until it tells otherwise.
    sent = Counter[str]()
    for _ in range(4):
        router, candidates = create_policy("least_loaded"), fleet()
        for candidate in candidates[1:]:
            candidate.others = 20_000
        for _ in range(40):
            chosen = first(router, RoutingRequest(work=500), candidates)
            chosen.work += 500
            sent[chosen.id] += 1
    assert 40 < sent["replica-0"] < 80


def test_ties_are_random() -> None:
    chooser, candidates = create_policy("least_loaded"), fleet()
    assert len({first(chooser, RoutingRequest(), candidates).id for _ in range(200)}) == 4


@pytest.mark.parametrize("name", ["prefix_aware", "session"])
def test_two_routers_send_a_conversation_to_the_same_replica(name: str) -> None:
    one, other, candidates = create_policy(name), create_policy(name), fleet()
    owners = Counter[str]()
    for number in range(200):
        owner = first(one, conversation(number), candidates)
        assert first(other, conversation(number, turns=2), candidates[::-1]) is owner
        assert first(one, conversation(number, turns=3), candidates) is owner
        owners[owner.id] += 1
    assert min(owners.values()) > 25


@pytest.mark.parametrize("name", ["prefix_aware", "session"])
def test_only_what_went_moves_when_replicas_come_and_go(name: str) -> None:
    candidates = fleet(5)
    before = {number: create_policy(name).choose(conversation(number), candidates).id for number in range(100)}
    for number, owner in before.items():
        now = create_policy(name).choose(conversation(number), candidates[:4]).id
        assert now == owner or owner == "replica-4"


@pytest.mark.parametrize("name", ["prefix_aware", "session"])
@given(loads=st.lists(st.integers(0, 200_000), min_size=4, max_size=4), number=st.integers(0, 30))
def test_affinity_holds_within_bounds_and_no_further(name: str, loads: list[int], number: int) -> None:
    candidates, request = fleet(), conversation(number)
    owner = create_policy(name).choose(request, candidates)
    for candidate, load in zip(candidates, loads, strict=True):
        candidate.work = load
    chosen = create_policy(name).choose(request, candidates)
    mean = sum(loads) / 4
    assert chosen.work <= 1.25 * mean + 128 * 100 + request.work
    if owner.work <= mean:
        assert chosen is owner


def test_a_conversation_that_was_sent_elsewhere_stays_there() -> None:
    chooser, candidates = create_policy("prefix_aware"), fleet()
    owner = chooser.choose(conversation(1), candidates)
    owner.work = 10**6
    refuge = first(chooser, conversation(1), candidates)
    owner.work = 0
    assert refuge is not owner
    assert first(chooser, conversation(1, turns=2), candidates) is refuge
    chooser.on_removed(refuge.id)
    assert chooser.choose(conversation(1, turns=2), candidates) is owner


def test_a_tenant_stays_together_and_one_that_is_everybody_does_not() -> None:
    tenants = [f"Tenant {tenant}. {OPENING}" for tenant in range(40)]
    chooser, candidates = create_policy("prefix_aware"), fleet()
    for number in range(400):
        first(chooser, conversation(number, opening=tenants[number % 40]), candidates)
    owners = {first(chooser, conversation(1000 + number, opening=tenants[3]), candidates).id for number in range(20)}
    assert len(owners) == 1
    alone = create_policy("prefix_aware")
    owners = {first(alone, conversation(number, opening=OPENING), candidates).id for number in range(40)}
    assert len(owners) == 4


def test_where_nothing_comes_again_load_decides() -> None:
    chooser, candidates = create_policy("prefix_aware"), fleet(work=1000)
    for number in range(400):
        first(chooser, conversation(number), candidates)
    candidates[1].work = 900
    assert {first(chooser, conversation(number), candidates).id for number in range(400, 440)} == {"replica-1"}


def test_memory_is_bounded() -> None:
    holders, popularity = PrefixIndex(max_prefixes=100), Popularity()
    for number in range(5000):
        holders.add((number, number + 1), "replica")
        popularity.add(number, 1)
    assert len(holders) == 100
    assert popularity.share(4999) > 0
    assert popularity.share(1) == 0


def test_an_adapter_goes_where_it_is() -> None:
    candidates = fleet()
    candidates[3].adapters, candidates[3].work = frozenset({"poet", "clerk"}), 5000
    assert create_policy("least_loaded").choose(RoutingRequest(adapter="poet"), candidates) is candidates[3]


def test_the_policy_chooses_among_replicas_with_the_adapter() -> None:
    candidates = fleet()
    for candidate, work in zip(candidates[:3], (3000, 1000, 2000), strict=True):
        candidate.adapters, candidate.work = frozenset({"poet"}), work
    assert create_policy("least_loaded").choose(RoutingRequest(adapter="poet"), candidates) is candidates[1]


def test_an_adapter_that_is_nowhere_is_loaded_where_a_slot_is_free() -> None:
    candidates = fleet()
    for candidate in candidates[:3]:
        candidate.adapters = frozenset({"clerk", candidate.id})
    candidates[3].work = 1000
    assert create_policy("session").choose(RoutingRequest(adapter="poet"), candidates) is candidates[3]


def test_routers_agree_on_where_an_adapter_is_loaded_and_stay_with_it() -> None:
    one, other, candidates = create_policy("least_loaded"), create_policy("least_loaded"), fleet()
    for candidate, work in zip(candidates, (10, 20, 30, 40), strict=True):
        candidate.work = work
    for number in range(50):
        request = RoutingRequest(adapter=f"adapter-{number}")
        owner = first(one, request, candidates)
        assert first(other, request, candidates) is owner
        owner.work += 25
        assert first(one, request, candidates) is owner


def test_a_hot_adapter_spreads_under_load_and_a_rare_one_waits() -> None:
    chooser, candidates = create_policy("least_loaded"), fleet()
    candidates[0].adapters, candidates[0].work = frozenset({"hot", "rare"}), 100_000
    for number in range(100):
        chooser.on_sent(
            RoutingRequest(adapter="hot" if number % 2 else f"other-{number}", work=100), candidates[1 + number % 2]
        )
    chooser.on_removed(candidates[2].id)
    assert chooser.choose(RoutingRequest(adapter="hot"), candidates) is not candidates[0]
    assert chooser.choose(RoutingRequest(adapter="rare"), candidates) is candidates[0]
