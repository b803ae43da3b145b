"""Rows in a column, and reasons in words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rayllm.batch.rows import ERROR, columns, failed, pack, reason, unpack
from rayllm.core.errors import EngineError, RequestError

ROWS: list[dict[str, Any]] = [{"a": 1}, {"b": [b"x", {2: None}]}, {}]


def test_what_was_packed_is_unpacked() -> None:
    table = pack(pa.table({"id": [1, 2, 3]}), "work", ROWS)
    assert unpack(table, "work") == ROWS
    assert unpack(pa.concat_tables([table, table]).slice(2, 3), "work") == [{}, *ROWS[:2]]
    again = pack(table.append_column("z", pa.array([0, 0, 0])), "work", [{"n": n} for n in range(3)])
    assert again.column_names == ["id", "work", "z"]
    assert unpack(again, "work") == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_rows_become_columns() -> None:
    assert columns([{"a": 1}, {"b": 2}], [{"b": 9, "c": 9}, {}]) == {"a": [1, None], "b": [9, 2]}
    assert columns([], []) == {}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestError("it  is\nwrong."), "it is wrong."),
        (EngineError("It died."), "It died."),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(""), "ValueError: "),
        (ValueError("\ud83d!"), "ValueError: ?!"),
    ],
)
def test_a_reason_is_one_line(error: Exception, expected: str) -> None:
    assert reason(error) == expected
    assert failed({"a": 1}, error) == {"a": 1, ERROR: expected}


def test_a_reason_is_short() -> None:
    assert len(reason(ValueError("x" * 10_000))) < 2100
