"""The chaos tool tells right answers from all others, and its seed decides what happens."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from benchmarks.faults.answers import Answer, Ending, StreamedAnswer, compare, whole_answer
from benchmarks.faults.report import table
from benchmarks.faults.schedule import schedule
from benchmarks.faults.tally import Tally

RIGHT = Answer("Paris it is.", "stop", 7, 3)
DONE = "data: [DONE]"
ERROR = 'data: {"error": {"message": "The replica is gone."}}'


def event(text: str = "", finish: str | None = None, identity: str = "chatcmpl-1", **more: Any) -> str:
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    return "data: " + json.dumps({"id": identity, "choices": choices, **more})


USAGE = "data: " + json.dumps(
    {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
)
WHOLE = [event(), event("Paris "), event("it is."), event(finish="stop"), USAGE, DONE]


def ending(lines: list[str]) -> Ending:
    answer = StreamedAnswer()
    for line in lines:
        answer.take(line)
        answer.take("")
    return answer.ending(RIGHT)[0]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (WHOLE, Ending.RIGHT),
        ([": heartbeat", *WHOLE], Ending.RIGHT),
        ([], Ending.CUT),
        (WHOLE[:2], Ending.CUT),
        (WHOLE[:-1], Ending.CUT),
        ([*WHOLE[:2], ERROR], Ending.EVENT),
        ([*WHOLE[:2], ERROR, DONE], Ending.EVENT),
    ],
)
def test_a_stream_ends_in_one_of_three_ways(lines: list[str], expected: Ending) -> None:
    assert ending(lines) is expected


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*WHOLE[:2], DONE], id="a false end"),
        pytest.param([event("Rome "), *WHOLE[2:]], id="another answer"),
        pytest.param([event("Rome "), ERROR], id="another answer that breaks off"),
        pytest.param([event("Rome ")], id="another answer that stops"),
        pytest.param([*WHOLE[:3], event("it is."), *WHOLE[3:]], id="text twice"),
        pytest.param([*WHOLE[:3], event(finish="length"), *WHOLE[4:]], id="another reason"),
        pytest.param([*WHOLE[:4], DONE], id="no usage"),
        pytest.param([*WHOLE[:4], USAGE.replace(": 3", ": 5"), DONE], id="another usage"),
        pytest.param([*WHOLE[:2], event("it is.", identity="chatcmpl-2"), *WHOLE[3:]], id="two ids"),
        pytest.param([*WHOLE, event("more")], id="something after the end"),
        pytest.param([*WHOLE[:2], WHOLE[2][:-10], *WHOLE[3:]], id="half an event"),
        pytest.param([*WHOLE[:2], "HTTP/1.1 200 OK", *WHOLE[2:]], id="another reply in it"),
        pytest.param([*WHOLE[:2], "data: 7", *WHOLE[2:]], id="no object"),
    ],
)
def test_a_stream_that_is_not_right_is_wrong(lines: list[str]) -> None:
    assert ending(lines) is Ending.WRONG


def test_a_whole_answer_is_compared_in_everything() -> None:
    body = {
        "choices": [{"message": {"content": "Paris it is."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    assert compare(whole_answer(body), RIGHT) == (Ending.RIGHT, "")
    assert compare(Answer("Paris it is.", "stop", 7, 4), RIGHT)[0] is Ending.WRONG


def first(count: int, plan: Iterator[tuple[float, str]]) -> list[tuple[float, str]]:
    return list(islice(plan, count))


def test_a_seed_decides_the_faults() -> None:
    faults = [str(number) for number in range(12)]
    plan = first(36, schedule(faults, random.Random(1)))
    assert plan == first(36, schedule(faults, random.Random(1)))
    assert plan != first(36, schedule(faults, random.Random(2)))
    # Each comes once before any comes again.
    for begin in (0, 12, 24):
        assert sorted(fault for _, fault in plan[begin : begin + 12]) == sorted(faults)


def test_a_row_for_each_fault_and_their_sum() -> None:
    harmless, harmful = Tally(fault_at=10.0), Tally(fault_at=20.0)
    harmless.add(Ending.RIGHT, begun_at=9.0)
    harmless.whole_s.append(1.5)
    harmful.add(Ending.RIGHT, begun_at=21.0)
    harmful.add(Ending.EVENT, "gone", begun_at=19.0)
    harmful.whole_s += [2.0, 3.0]
    harmful.failures_s = [0.5]
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in table({"a": harmless, "b": harmful}).splitlines()
    ]
    head, _, *rows = rows
    a, b, total = (dict(zip(head, row, strict=True)) for row in rows)
    assert a == {**dict.fromkeys(head, "0"), "fault": "a", "times": "1", "sent": "1", "right": "1", "under way": "1",
                 "of them right": "1", "last failure after": "–", "whole after": "1.5 s"}  # fmt: skip
    assert (b["sent"], b["error event"], b["under way"], b["of them right"]) == ("2", "1", "1", "0")
    assert (b["times"], b["last failure after"], b["whole after"]) == ("2", "0.5 s", "2.5 s")
    assert (total["times"], total["sent"], total["right"], total["under way"]) == ("3", "3", "2", "2")
