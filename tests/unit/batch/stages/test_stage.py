"""A stage's function on the rows of a table."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from rayllm.batch.rows import ERROR, Row, pack, unpack
from rayllm.batch.stages.stage import StageCall
from rayllm.core.errors import ConfigError, RequestError

WORK = "__data"


class Add:
    """Adds `by`; fails rows that have no `n`."""

    made = 0

    def __init__(self, by: int = 1) -> None:
        Add.made += 1
        self._by = by
        self.calls: list[int] = []

    def __call__(self, rows: list[Row]) -> list[Row]:
        self.calls.append(len(rows))
        return [{**row, "n": row["n"] + self._by} if "n" in row else {**row, ERROR: "it has no n."} for row in rows]


class AddOne(Add):
    """The same for one row at a time."""

    def __call__(self, row: Row) -> Row:  # type: ignore[override]
        return super().__call__([row])[0]


class Lose:
    """Gives one row too few."""

    def __call__(self, rows: list[Row]) -> list[Row]:
        return rows[1:]


def call(fn: Any = Add, batching: bool = True, stop: bool = False, **kwargs: Any) -> StageCall:
    return StageCall(fn, kwargs, batching, WORK, stop)


def table(*rows: Row) -> pa.Table:
    return pack(pa.table({"id": list(range(len(rows)))}), WORK, rows)


@pytest.mark.parametrize(("fn", "batching"), [(Add, True), (AddOne, False)])
def test_rows_go_through_in_order(fn: Any, batching: bool) -> None:
    done = call(fn, batching, by=2)(table({"n": 1}, {"n": 5, "x": "y"}))
    assert unpack(done, WORK) == [{"n": 3}, {"n": 7, "x": "y"}]
    assert done["id"].to_pylist() == [0, 1]
    assert done.column_names == ["id", WORK]


@pytest.mark.parametrize(("fn", "batching"), [(Add, True), (AddOne, False)])
def test_rows_that_failed_before_are_left_alone(fn: Any, batching: bool) -> None:
    stage = call(fn, batching)
    done = stage(table({ERROR: "broken.", "n": 1}, {"n": 1}, {"x": 1}))
    assert unpack(done, WORK) == [{ERROR: "broken.", "n": 1}, {"n": 2}, {"x": 1, ERROR: "it has no n."}]
    if batching:
        assert stage.instance().calls == [2]


def test_a_row_that_fails_may_end_the_job() -> None:
    assert unpack(call(stop=True)(table({"n": 1})), WORK) == [{"n": 2}]
    with pytest.raises(RequestError, match="it has no n"):
        call(stop=True)(table({"n": 1}, {"x": 1}))


def test_a_function_that_loses_rows_is_told() -> None:
    with pytest.raises(ConfigError, match="Lose returned 1 rows for 2"):
        call(Lose)(table({}, {}))


def test_an_exception_ends_the_job() -> None:
    with pytest.raises(TypeError):
        call()(table({"n": "text"}))


def test_a_table_without_rows() -> None:
    assert call()(table()).num_rows == 0


def test_the_function_is_made_once_in_a_process() -> None:
    Add.made = 0
    stage, other = call(), call()
    for _ in range(3):
        # A task has the stage as it was pickled.
        pickle.loads(pickle.dumps(stage))(table({"n": 1}))
    assert Add.made == 1
    other(table({"n": 1}))
    assert Add.made == 2


def test_only_so_many_functions_are_kept() -> None:
    Add.made = 0
    stages = [call() for _ in range(20)]
    for stage in stages:
        stage.instance()
    stages[-1].instance()
    assert Add.made == 20
    stages[0].instance()
    assert Add.made == 21
    assert len(StageCall._instances) == 16
