"""The user's own functions before the first stage and after the last."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from ray.data.block import BlockAccessor

from rayllm.batch.processors.user_functions import Postprocess, Preprocess
from rayllm.batch.rows import ERROR, Row, has_nulls_only, pack, unpack
from rayllm.batch.stages.examples import ENGINE
from rayllm.core.errors import RequestError

WORK = "__data"
TAKES = frozenset({"messages", "sampling_params"})


def before(function: Any, table: pa.Table, takes: Any = TAKES, stop: bool = False) -> pa.Table:
    return Preprocess(function, takes, WORK, stop)(table)


def made(function: Any, takes: Any = TAKES, **columns: list[Any]) -> list[Row]:
    """What the stages get of a table with these columns."""
    return unpack(before(function, pa.table(columns), takes), WORK)


def after(
    function: Any, table: pa.Table, data: list[Row], hidden: Any = (), stop: bool = False, **expected: Any
) -> pa.Table:
    return Postprocess(function, WORK, hidden, stop, **expected)(pack(table, WORK, data))


def rows(table: pa.Table) -> list[Row]:
    """As a user sees them."""
    return [dict(row) for row in BlockAccessor.for_block(table).iter_rows(public_row_format=True)]


def error_of(row: Row) -> str:
    return str(row[ERROR])


# Before.


def test_a_row_becomes_what_preprocess_returns_and_its_columns_stay() -> None:
    table = before(lambda row: {"messages": row["q"].upper()}, pa.table({"q": ["a", "b"], "n": [1, 2]}))
    assert unpack(table, WORK) == [{"messages": "A"}, {"messages": "B"}]
    assert table.drop_columns([WORK]).to_pydict() == {"q": ["a", "b"], "n": [1, 2]}


def test_without_preprocess_the_columns_that_are_known_are_taken() -> None:
    assert made(None, messages=["a"], other=[1]) == [{"messages": "a"}]
    assert made(None, takes=None, messages=["a"], other=[1]) == [{"messages": "a", "other": 1}]


def test_the_whole_row_may_be_returned_with_what_is_new() -> None:
    assert made(lambda row: {**row, "messages": "hi"}, q=["a"], n=[1]) == [{"messages": "hi"}]


def test_values_of_any_kind_go_through() -> None:
    image = Image.new("RGB", (2, 2), "red")
    values = {"messages": [{"content": [{"image": image}]}], "sampling_params": {"bias": np.arange(3)}}
    (row,) = made(lambda row: values, q=["a"])
    assert row["messages"][0]["content"][0]["image"].tobytes() == image.tobytes()
    assert row["sampling_params"]["bias"].tolist() == [0, 1, 2]


def test_rows_may_differ_in_their_keys_and_types() -> None:
    def function(row: Row) -> Row:
        return {"messages": row["q"]} if row["q"] == "a" else {"sampling_params": {"stop": 1}, "messages": [1]}

    assert made(function, q=["a", "b"]) == [{"messages": "a"}, {"sampling_params": {"stop": 1}, "messages": [1]}]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda row: {"messages": row["question"]},
            "preprocess raised KeyError: 'question'; the row has the columns q",
        ),
        (lambda row: {"messages": 1 / 0}, "preprocess raised ZeroDivisionError: division by zero"),
        (lambda row: row["q"], "preprocess must return a mapping, not str."),
        (lambda row: None, "preprocess must return a mapping, not NoneType."),
        (
            lambda row: {"mesages": "hi"},
            "preprocess returned an unknown key `mesages`; did you mean `messages`?",
        ),
        (lambda row: {"xyz": 1}, "returned an unknown key `xyz`; known keys: messages, sampling_params."),
    ],
)
def test_a_wrong_preprocess_fails_the_row(function: Callable[[Row], Any], reason: str) -> None:
    (row,) = made(function, q=["a"])
    assert row.keys() == {ERROR}
    assert reason in error_of(row)
    with pytest.raises(RequestError, match="preprocess"):
        before(function, pa.table({"q": ["a"]}), stop=True)


def test_a_failed_row_leaves_the_others_alone() -> None:
    first, second = made(lambda row: {"messages": 1 / row["n"]}, n=[0, 2])
    assert "division by zero" in error_of(first)
    assert second == {"messages": 0.5}


@pytest.mark.parametrize("table", [pa.table({"q": pa.array([], pa.string())}), pa.table({})])
def test_nothing_becomes_nothing(table: pa.Table) -> None:
    table = before(lambda row: 1 / 0, table)
    assert unpack(table, WORK) == []
    assert after(lambda row: 1 / 0, table.drop_columns([WORK]), []).column_names == [*table.column_names[:-1], ERROR]


def test_rows_without_columns_are_rows() -> None:
    table = before(lambda row: {"messages": "hi"}, pa.table({"q": ["a", "b"]}).drop_columns(["q"]))
    assert unpack(table, WORK) == [{"messages": "hi"}] * 2
    assert rows(after(None, table.drop_columns([WORK]), [{"x": 1}, {"x": 2}])) == [
        {"x": 1, ERROR: None},
        {"x": 2, ERROR: None},
    ]


def test_what_an_earlier_processor_left_in_the_column_of_the_work_is_replaced() -> None:
    table = before(None, pack(pa.table({"messages": ["a"]}), WORK, [{"old": 1}]))
    assert unpack(table, WORK) == [{"messages": "a"}]
    assert table.column_names == ["messages", WORK]


# After.


def test_results_stand_beside_the_columns_of_the_input() -> None:
    table = after(None, pa.table({"q": ["a", "b"]}), [{"text": "x", "secret": 1}, {"text": "y"}], hidden={"secret"})
    assert table.to_pydict() == {"q": ["a", "b"], "text": ["x", "y"], ERROR: [None, None]}


def test_postprocess_sees_the_row_and_all_results_twice() -> None:
    seen: list[Row] = []

    def function(row: Row) -> Row:
        seen.append(row)
        return {"answer": row["_outputs"]["text"] + row["text"] + row["q"]}

    table = after(function, pa.table({"q": ["a"]}), [{"text": "x", "secret": 1}], hidden={"secret"})
    assert seen == [{"q": "a", "text": "x", "_outputs": {"text": "x"}}]
    assert rows(table) == [{"q": "a", "answer": "xxa", ERROR: None}]


def test_a_list_that_was_changed_in_place_is_written() -> None:
    def grow(row: Row) -> Row:
        row["v"].append(2.5)
        return row

    done = after(grow, pa.table({"v": pa.array([[1.5]], pa.list_(pa.float32()))}), [{}])
    assert done.column("v").to_pylist() == [[1.5, 2.5]]


def test_the_whole_row_may_be_returned() -> None:
    table = pa.table(
        {"q": ["a"], "when": pa.array([0], pa.timestamp("s")), "v": pa.array([[1.5]], pa.list_(pa.float32()))}
    )
    done = after(lambda row: {**row, "answer": row["text"]}, table, [{"text": "x"}])
    assert done.column_names == ["q", "when", "v", "text", "answer", ERROR]
    assert done.select(table.column_names) == table


def test_a_column_may_be_replaced_in_some_rows() -> None:
    table = pa.table({"name": ["a", None, "c"]})
    done = after(lambda row: {**row, "name": row["name"] or "nobody"}, table, [{}, {}, {}])
    assert done["name"].to_pylist() == ["a", "nobody", "c"]


def test_a_row_that_failed_keeps_its_input() -> None:
    """It can be tried again, also where a result has the name of a column."""
    table = pa.table({"prompt": ["a", "b"]})
    done = after(None, table, [{"prompt": "<s>a", "text": "x"}, {ERROR: "it broke."}])
    assert rows(done) == [
        {"prompt": "<s>a", "text": "x", ERROR: None},
        {"prompt": "b", "text": None, ERROR: "it broke."},
    ]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda row: {"a": row["txet"]}, "postprocess raised KeyError: 'txet'; the row has the columns q, text."),
        (lambda row: row["text"], "postprocess must return a mapping, not str."),
    ],
)
def test_a_wrong_postprocess_fails_the_row(function: Callable[[Row], Any], reason: str) -> None:
    done = after(function, pa.table({"q": ["a"]}), [{"text": "x"}])
    assert rows(done) == [{"q": "a", ERROR: reason}]
    with pytest.raises(RequestError, match="postprocess"):
        after(function, pa.table({"q": ["a"]}), [{"text": "x"}], stop=True)


def test_a_failed_row_never_reaches_postprocess() -> None:
    assert rows(after(lambda row: 1 / 0, pa.table({"q": ["a"]}), [{ERROR: "it broke.", "text": "x"}])) == [
        {"q": "a", ERROR: "it broke."}
    ]


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ([[0.5, 1.5], None], [[0.5, 1.5], None]),
        ([np.array([1, 2]), None], [[1, 2], None]),
        ([np.zeros((2, 1)), None], [[[0.0], [0.0]], None]),
        ([np.zeros((2, 1)), np.zeros((1, 2))], [[[0.0], [0.0]], [[0.0, 0.0]]]),
        ([np.array(3), None], [3, None]),
        ([np.float32(0.5), None], [0.5, None]),
        ([{"a": [{"b": 1}]}, {"c": "x"}], [{"a": [{"b": 1}], "c": None}, {"a": None, "c": "x"}]),
        ([{"a": 1}, {"a": "x"}], [{"a": 1}, {"a": "x"}]),
        ([1, "x"], [1, "x"]),
        ([2**70, -1], [2**70, -1]),
        ([b"\x00", None], [b"\x00", None]),
        (["half \ud83d", None], ["half \ud83d", None]),
    ],
)
def test_results_of_any_kind_become_columns(values: list[Any], seen: list[Any]) -> None:
    done = after(None, pa.table({"n": [1, 2]}), [{"x": value} for value in values])
    assert [row["x"] for row in rows(done)] == seen


def test_arrays_of_blocks_with_and_without_failed_rows_can_be_joined() -> None:
    from ray.data._internal.arrow_ops.transform_pyarrow import concat

    good = after(None, pa.table({"n": [1]}), [{"x": np.ones((2, 2))}])
    bad = after(None, pa.table({"n": [2, 3]}), [{ERROR: "it broke."}, {"x": np.ones((2, 2))}])
    assert [row["x"] is None for row in rows(concat([good, bad]))] == [False, True, False]


def test_images_are_results_too() -> None:
    image = Image.new("RGB", (2, 2), "red")
    first, second = rows(after(None, pa.table({"n": [1, 2]}), [{"image": image}, {ERROR: "it broke."}]))
    assert first["image"].tobytes() == image.tobytes()
    assert second["image"] is None


def test_a_reason_that_is_no_text_for_a_column_is_made_one() -> None:
    (row,) = made(lambda row: {}["\ud83d"], q=["a"])
    assert pa.array([error_of(row)])


# Blocks of one job.


RESULTS: Row = {"text": "", "tokens": [0], "scores": [{"a": 0.0}]}
GOOD: Row = {"text": "x", "tokens": [1, 2]}
BROKEN: Row = {ERROR: "it broke."}


def blocks(function: Any, *results: Row, **expected: Any) -> list[pa.Schema]:
    """The schema of each block, of which each has one row with such results."""
    table = pa.table({"q": pa.array(["a"], pa.large_string()), "n": pa.array([1], pa.int8())})
    return [after(function, table, [each], **expected).schema for each in results]


@pytest.mark.parametrize("results", [*ENGINE.values(), RESULTS])
def test_without_postprocess_all_blocks_have_all_results(results: Row) -> None:
    some = {name: results[name] for name in list(results)[:2]}
    all_results, partly, broken, nothing = blocks(None, results, some, BROKEN, {}, results=results)
    assert all_results == partly == broken == nothing
    assert all_results.names == ["q", "n", *results, ERROR]
    assert not any(has_nulls_only(kind) for kind in all_results.types)


@pytest.mark.parametrize(
    "function",
    [
        lambda row: {"answer": row["text"]},
        lambda row: {"answer": row["text"], "count": len(row["tokens"]), "half": row["n"] / 2},
        lambda row: {**row, "answer": row["text"].upper()},
        lambda row: {**row["_outputs"], "q": row["q"] + "!"},
        lambda row: {"maybe": row["scores"] and row["scores"][0]["a"], "first": row["tokens"][:0]},
        lambda row: row.update(tokens=[*row["tokens"], 1]) or row,
    ],
)
def test_all_blocks_have_what_postprocess_returns(function: Any) -> None:
    good, more, broken = blocks(function, GOOD, {**GOOD, "scores": [{"a": 0.5}]}, BROKEN, results=RESULTS)
    assert good == more == broken
    assert (good.field("n").type, good.names[-1]) == (pa.int8(), ERROR)


def test_postprocess_sees_made_up_results_only_where_no_row_tells() -> None:
    seen: list[str] = []

    def function(row: Row) -> Row:
        seen.append(row["text"])
        return {"answer": row["text"]}

    table = pa.table({"q": ["a", "b"]})
    after(function, table, [GOOD, BROKEN], results=RESULTS)
    assert seen == ["x"]
    after(function, table, [BROKEN, BROKEN], results=RESULTS)
    assert seen == ["x", ""]


def test_a_row_tells_what_the_one_before_it_could_not() -> None:
    table = pa.table({"q": [None, "b"]})
    done = after(lambda row: {"answer": row["q"] + row["text"]}, table, [BROKEN, BROKEN], results=RESULTS)
    assert done.schema.field("answer").type == pa.string()


def test_a_declared_schema_holds_for_all_blocks() -> None:
    schema = pa.schema([("answer", pa.string()), ("score", pa.float32())])

    def function(row: Row) -> Row:
        return dict(json.loads(row["text"]))

    results = [{"text": text} for text in ('{"answer": "x", "score": 1}', "{}", '{"score": 0.5}', "no JSON")]
    good, empty, partly, broken = blocks(function, *results, results=RESULTS, schema=schema)
    assert good == empty == partly == broken
    assert good.names == ["q", "n", "answer", "score", ERROR]
    all_results, *_ = blocks(None, GOOD, BROKEN, results=RESULTS, schema=pa.schema([("text", pa.string())]))
    assert all_results.names == ["q", "n", "text", ERROR]
    assert good.field("score").type == pa.float32()


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (pa.int64(), 0.5, "`x` is a float, but `output_schema` has int64."),
        (pa.int8(), 300, "`x` is a int, but `output_schema` has int8."),
        (pa.float64(), "a", "`x` is a str, but `output_schema` has double."),
        (pa.list_(pa.int64()), {"a": 1}, "`x` is a dict, but `output_schema` has list<item: int64>."),
    ],
)
def test_a_value_of_another_type_fails_its_row(kind: pa.DataType, value: Any, said: str) -> None:
    table, schema = pa.table({"n": [1, 2]}), pa.schema([("x", kind)])
    done = after(None, table, [{"x": value}, {"x": None}], schema=schema)
    assert done.schema.field("x").type == kind
    assert done[ERROR].to_pylist() == [said, None]
    with pytest.raises(RequestError, match="output_schema"):
        after(None, table, [{"x": value}, {}], schema=schema, stop=True)


# One processor after another.


def test_a_row_that_failed_earlier_passes_untouched() -> None:
    seen: list[Row] = []

    def function(row: Row) -> Row:
        seen.append(row)
        return {"messages": row["q"]}

    table = pa.table({"q": ["a", "b"], ERROR: ["it broke.", None]})
    work = before(function, table)
    assert unpack(work, WORK) == [{ERROR: "it broke."}, {"messages": "b"}]
    # To those who go on, the column of the errors is none of theirs.
    assert seen == [{"q": "b"}]
    done = after(None, work.drop_columns([WORK]), [{ERROR: "it broke."}, {"text": "x"}])
    assert rows(done) == [{"q": "a", ERROR: "it broke.", "text": None}, {"q": "b", ERROR: None, "text": "x"}]


def test_the_error_column_is_not_an_input() -> None:
    table = pa.table({"body": ["a"], ERROR: pa.array([None], pa.string())})
    assert unpack(before(None, table, takes=None), WORK) == [{"body": "a"}]
    assert unpack(before(dict, table, takes=None), WORK) == [{"body": "a"}]


def test_a_row_may_fail_in_the_second_processor() -> None:
    table = pa.table({"q": ["a"], "text": ["first"], ERROR: pa.array([None], pa.string())})
    work = before(lambda row: 1 / 0, table)
    done = after(None, work.drop_columns([WORK]), unpack(work, WORK))
    (row,) = rows(done)
    assert row["text"] == "first"
    assert "division by zero" in error_of(row)


def test_a_mapping_is_enough() -> None:
    class Own(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return {"messages": "hi"}[key]

        def __iter__(self) -> Any:
            return iter(["messages"])

        def __len__(self) -> int:
            return 1

    assert made(lambda row: Own(), q=["a"]) == [{"messages": "hi"}]
