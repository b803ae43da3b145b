"""The order of rows before an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayllm.batch.rows import ERROR, Row, pack, sort_by_prefix, unpack

WORK = "__data"


def ordered(*rows: Row) -> list[int]:
    table = sort_by_prefix(pack(pa.table({"id": list(range(len(rows)))}), WORK, rows), WORK)
    ids: list[int] = table["id"].to_pylist()
    assert str(unpack(table, WORK)) == str([rows[index] for index in ids])
    return ids


def tokens(*ids: int) -> Row:
    return {"prompt_token_ids": list(ids)}


def test_equal_beginnings_come_together() -> None:
    assert ordered(tokens(1, 2, 9), tokens(5), tokens(1, 2, 3), tokens(5, 1), tokens(1, 2)) == [4, 2, 0, 1, 3]


def test_adapters_come_together_first() -> None:
    pirate = {**tokens(1), "model": "m:pirate"}
    assert ordered(pirate, tokens(2), {**tokens(1), "model": None}, pirate) == [2, 1, 0, 3]


def test_rows_without_tokens_go_by_their_prompts() -> None:
    assert ordered({"prompt": "b"}, {ERROR: "x"}, {"prompt": "a"}, {"prompt_token_ids": None}) == [1, 3, 2, 0]


@pytest.mark.parametrize("wrong", [7, ["a"], [None], [[1]], "text"])
def test_wrong_tokens_are_the_rows_fault_alone(wrong: Any) -> None:
    assert ordered(tokens(2), {"prompt_token_ids": wrong}, tokens(1)) == [1, 2, 0]


def test_tokens_may_be_arrays() -> None:
    assert ordered({"prompt_token_ids": np.array([3, 1])}, {"prompt_token_ids": np.array([3])}) == [1, 0]


def test_nothing_is_ordered() -> None:
    assert ordered() == []
