"""Deprecated request fields."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.engine.middleware.deprecated_fields import replace_deprecated

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": "{}"}, {"json": "{}"}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "root ::= x"}, {"grammar": "root ::= x"}),
        ({"structural_tag": "{}"}, {"structural_tag": "{}"}),
        ({"guided_choice": ["a"], "guided_decoding_backend": "outlines"}, {"choice": ["a"]}),
        ({"guided_choice": ["a"], "guided_decoding_backend": "xgrammar:no-fallback"}, {"choice": ["a"]}),
        ({"guided_choice": ["a"], "guided_json": None}, {"choice": ["a"]}),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, {"json": SCHEMA, "whitespace_pattern": " "}),
    ],
)
def test_old_constraints_are_todays(old: dict[str, Any], today: dict[str, Any]) -> None:
    sent = {"model": "m", **old}
    before = copy.deepcopy(sent)
    assert replace_deprecated(sent) == {"model": "m", "structured_outputs": today}
    assert sent == before


def test_nims_place_for_constraints_is_known() -> None:
    sent = {"nvext": {"guided_choice": ["a"], "guided_decoding_backend": "mine"}}
    assert replace_deprecated(sent) == {**sent, "structured_outputs": {"choice": ["a"]}}


def test_a_request_without_old_names_is_left_alone() -> None:
    sent = {"model": "m", "structured_outputs": {"choice": ["a"]}, "guided_json": None}
    assert replace_deprecated(sent) == sent


@pytest.mark.parametrize(
    ("sent", "param", "said"),
    [
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "exclude each other"),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "guided_json", "exclude each other"),
        ({"guided_decoding_backend": "magic"}, "guided_decoding_backend", "must be one of auto, xgrammar"),
        ({"guided_decoding_backend": 7}, "guided_decoding_backend", "must be one of"),
        ({"guided_whitespace_pattern": " "}, "structured_outputs", "goes with a JSON schema"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "structured_outputs", "goes with a JSON schema"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": 7}}, "structured_outputs", "must be a text"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
            "exclude each other",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            "structured_outputs",
            "`structured_outputs.regex` and",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "and `response_format` exclude each other",
        ),
        ({"guided_regex": "a", "response_format": {"type": "json_schema"}}, "structured_outputs", "`response_format`"),
        ({"best_of": 3}, "best_of", "no longer supports"),
    ],
)
def test_contradictions_are_refused(sent: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        replace_deprecated(sent)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "sent",
    [
        {"structured_outputs": {"regex": "a", "choice": None, "disable_any_whitespace": True}},
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
        {"structured_outputs": {"disable_any_whitespace": True}, "response_format": {"type": "json_object"}},
        {"structured_outputs": 7, "response_format": 7},
    ],
)
def test_one_constraint_is_left_alone(sent: dict[str, Any]) -> None:
    assert replace_deprecated(sent) == sent


def test_best_of_within_n_asks_for_nothing_more() -> None:
    assert replace_deprecated({"best_of": 2, "n": 2}) == {"best_of": 2, "n": 2}
