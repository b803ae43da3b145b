"""Records of requests: their parts, and the sentence that explains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayllm.cli.commands.explain import PARTS
from rayllm.core.request_stats import RequestStats, server_timing
from rayllm.serving.router.telemetry.recent_requests import RecentRequests, explain
from rayllm.serving.router.telemetry.telemetry import RequestLog
from rayllm.serving.wire.record import RequestRecord


def record(stats: RequestStats | None = None, request_id: str = "r", **keys: Any) -> RequestRecord:
    """A request of ten seconds: one at the router, two of waiting, seven at the replica."""
    values: dict[str, Any] = {"routed_at": 101.0, "sent_at": 103.0, "attempts": 1, "replica": "m-0", "status": 200}
    made = RequestRecord("/v1/completions", request_id, "m", "a", started_at=100.0, stats=stats, **values | keys)
    made.ended_at = 110.0
    return made


def test_the_command_names_every_part() -> None:
    assert list(PARTS) == [name for name, _ in record().parts()]


def test_the_parts_add_up_to_the_whole() -> None:
    stats = RequestStats(10, 4, 7, 0.5, 1.0, 3.0, "stop", 1, adapter_s=0.25, prepare_s=0.75, deliver_s=1.0)
    parts = record(stats).parts()
    assert dict(parts) == {
        "router": 1, "hooks": 0, "guards": 0, "lost": 0, "wait": 2, "transfer": 0.5, "adapter": 0.25, "prepare": 0.75,
        "queue": 0.5, "prefill": 1, "decode": 3, "deliver": 1,
    }  # fmt: skip
    assert sum(seconds for _, seconds in parts) == 10


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"router": 1, "wait": 2, "transfer": 7}),
        ({"sent_at": None}, {"router": 1, "wait": 9}),
        ({"sent_at": None, "routed_at": None}, {"router": 10}),
        ({"lost_s": 1.5}, {"router": 1, "lost": 1.5, "wait": 0.5, "transfer": 7}),
    ],
)
def test_what_no_replica_accounts_for(keys: dict[str, Any], expected: dict[str, float]) -> None:
    found = record(**keys).parts()
    assert {name: seconds for name, seconds in found if seconds} == expected
    assert sum(seconds for _, seconds in found) == 10


@pytest.mark.parametrize(
    ("stats", "keys", "sentence"),
    [
        (None, {"routed_at": 109.0, "sent_at": 110.0}, "the router read and routed"),
        (None, {"sent_at": 110.0, "waited_for": "a running replica"}, "it waited until a replica was running"),
        (None, {"sent_at": 110.0, "waited_for": "a free slot"}, "it waited for a free slot"),
        (None, {"sent_at": 110.0, "lost_s": 8.0, "attempts": 3}, "of 3 attempts, some met a replica that was full"),
        (None, {"sent_at": 110.0, "lost_s": 8.0, "attempts": 2, "continuations": 1}, "replica continued the reply"),
        (None, {"routed_at": 109.0, "sent_at": 110.0, "hooks_s": 8.0}, "it waited for the policy hooks"),
        (None, {"routed_at": 109.0, "sent_at": 110.0, "guards_s": 8.0}, "it waited for guards"),
        (None, {}, "reported no times"),
        (RequestStats(answers=1), {}, "router and replica exchanged"),
        (RequestStats(adapter_s=6), {}, "the replica loaded the adapter `a`"),
        (RequestStats(prepare_s=6), {}, "the replica read the request"),
        (RequestStats(queued_s=6), {}, "in the engine's queue"),
        (RequestStats(1000, 100, prefill_s=6), {}, "900 tokens that were not cached, and 100 that were"),
        (RequestStats(1, 0, 7, decode_s=6, answers=1), {}, "generated 7 tokens, one every 1.00 s."),
        (RequestStats(1, 0, 7, decode_s=6, slowest_gap_s=4), {}, "The longest pause between two took 4.00 s."),
        (RequestStats(1, 0, 7, decode_s=6, preemptions=2), {}, "Preempted: 2×"),
        (RequestStats(deliver_s=6, blocked_s=5), {}, "the client read slowly: the reply waited 5.00 s for it"),
        (RequestStats(deliver_s=6), {}, "finished and sent after the last token"),
    ],
)
def test_the_largest_part_is_explained(stats: RequestStats | None, keys: dict[str, Any], sentence: str) -> None:
    assert sentence in explain(record(stats, **keys))


def test_the_sentence_begins_with_the_figures() -> None:
    assert explain(record(RequestStats(queued_s=6))).startswith("6.00 s of 10.00 s (60%): it waited in the engine")


def test_the_last_requests_are_kept() -> None:
    recent = RecentRequests(3)
    for name in ("a", "b", "c", "a", "d"):
        recent.add(record(request_id=name))
    assert [each["id"] for each in recent.last(10)] == ["d", "a", "c"]
    assert [each["id"] for each in recent.last(1)] == ["d"]
    assert recent.find("b") is None
    found = recent.find("a")
    assert found is not None
    assert (found["object"], found["total_s"], found["parts"]["wait"]) == ("request", 10, 2)
    json.dumps(found)


def test_ids_are_cut_off_where_they_are_looked_up_as_where_they_are_kept() -> None:
    recent = RecentRequests()
    recent.add(record(request_id="x" * 200))
    assert recent.find("x" * 300) is not None


def test_the_log_has_a_line_of_json_for_each(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "requests.jsonl")
    for name in ("a", "b\nc"):
        log.write(record(RequestStats(10, 4, 7), request_id=name))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [(line["id"], line["model"], line["completion_tokens"]) for line in lines] == [
        ("a", "m", 7),
        ("b\nc", "m", 7),
    ]


def test_server_timing_leaves_out_what_took_no_time() -> None:
    assert server_timing([("router", 0.0015), ("wait", 0.0), ("queue", 1.0)]) == "router;dur=1.500, queue;dur=1000.000"
