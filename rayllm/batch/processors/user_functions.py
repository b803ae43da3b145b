"""Where the user's own functions meet a processor: before its first stage and after its last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor

from rayllm.batch.rows import ERROR, Row, as_array, columns, failed, pack, reason, unpack
from rayllm.config.faults import did_you_mean
from rayllm.errors import RequestError

# Values of a row that a function can change in place.
_MUTABLE = (list, dict, np.ndarray)

UserFunction = Callable[[Row], Mapping[str, Any]]


class Preprocess:
    """From a row of the input to what the stages work on.

    Args:
        function: the user's; None takes the row itself.
        takes: keys that the stages know; None takes any.
        column: where the mapping goes.
        stop_at_error: end the job at the first row that fails.
    """

    def __init__(
        self, function: UserFunction | None, takes: Collection[str] | None, column: str, stop_at_error: bool
    ) -> None:
        self._function = function
        self._takes = takes
        self._column = column
        self._stop_at_error = stop_at_error

    def __call__(self, table: pa.Table) -> pa.Table:
        if table.schema.get_field_index(self._column) >= 0:
            table = table.drop_columns([self._column])
        errors = _errors(table)
        # A column of nulls here, for all who go on: it is neither for the function nor for the stages.
        given = table.drop_columns([ERROR]) if ERROR in table.column_names else table
        rows = [self._row(row, error) for row, error in zip(_rows(given), errors, strict=True)]
        return pack(table, self._column, rows)

    def _row(self, row: Row, error: str | None) -> Row:
        if error is not None:
            # It failed in an earlier processor: there is nothing to go on with.
            return {ERROR: error}
        try:
            return self._made_of(row)
        except Exception as problem:
            if self._stop_at_error:
                raise
            return failed({}, problem)

    def _made_of(self, row: Row) -> Row:
        if self._function is None:
            return {key: value for key, value in row.items() if self._takes is None or key in self._takes}
        try:
            made = self._function(row)
        except Exception as problem:
            told = f"preprocess raised {reason(problem)}; the row has the columns {', '.join(row)}."
            raise RequestError(told) from problem
        if not isinstance(made, Mapping):
            raise RequestError(f"preprocess must return a mapping, not {type(made).__name__}.")
        if self._takes is not None:
            # What comes from the input is the user's own; anything else is meant for the stages.
            for key in made.keys() - self._takes - row.keys():
                known = did_you_mean(key, self._takes) or f"; known are {', '.join(sorted(self._takes))}."
                raise RequestError(f"preprocess returned `{key}`, which means nothing here{known}")
        return {key: value for key, value in made.items() if self._takes is None or key in self._takes}


class Postprocess:
    """From what the stages have made to columns of the output, beside the input's own.

    Args:
        function: the user's; None takes all results.
        column: where the mappings are.
        hidden: keys of the mapping that are no results.
        stop_at_error: end the job at the first row that fails.
    """

    def __init__(
        self, function: UserFunction | None, column: str, hidden: Collection[str], stop_at_error: bool
    ) -> None:
        self._function = function
        self._column = column
        self._hidden = hidden
        self._stop_at_error = stop_at_error

    def __call__(self, table: pa.Table) -> pa.Table:
        made = unpack(table, self._column)
        table = table.drop_columns([self._column])
        inputs = list(_rows(table))
        rows = [
            _changed(self._row(row, result), row, table.slice(index, 1))
            for index, (row, result) in enumerate(zip(inputs, made, strict=True))
        ]
        # What a row has no result for stays as it came in: a row that failed can be tried again.
        added = {**columns(rows, inputs), ERROR: [row.get(ERROR) for row in rows]}
        for name, values in added.items():
            array = as_array(name, values) if name != ERROR else pa.chunked_array([pa.array(values, pa.string())])
            index = table.schema.get_field_index(name)
            table = table.append_column(name, array) if index < 0 else table.set_column(index, name, array)
        return table

    def _row(self, row: Row, made: Row) -> Row:
        if made.get(ERROR) is not None:
            return {ERROR: made[ERROR]}
        results = {key: value for key, value in made.items() if key not in self._hidden}
        if self._function is None:
            return results
        try:
            answer = _answer(self._function, {**row, **results}, results)
        except RequestError as problem:
            if self._stop_at_error:
                raise
            return failed({}, problem)
        return {key: value for key, value in answer.items() if key != "_outputs"}


def _changed(answer: Row, row: Row, table: pa.Table) -> Row:
    """`answer` without the columns that go out as they came in: those keep the type that they have in the table.

    Args:
        answer: columns for the output.
        row: the row as the user's function got it.
        table: the same row, untouched.
    """
    # A list or a mapping is the same object also where the function has changed what is in it.
    same = [key for key, value in answer.items() if key in row and value is row[key]]
    if not any(isinstance(answer[key], _MUTABLE) for key in same):
        return {key: value for key, value in answer.items() if key not in same}
    fresh = next(_rows(table))
    return {key: value for key, value in answer.items() if key not in same or not _equal(fresh[key], value)}


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _answer(function: UserFunction, row: Row, results: Row) -> Mapping[str, Any]:
    try:
        answer = function({**row, "_outputs": results})
    except Exception as problem:
        raise RequestError(f"postprocess raised {reason(problem)}; the row has {', '.join(row)}.") from problem
    if not isinstance(answer, Mapping):
        raise RequestError(f"postprocess must return a mapping, not {type(answer).__name__}.")
    return answer


def _rows(table: pa.Table) -> Iterator[Row]:
    """The rows as Ray Data gives them to functions of its own `map`."""
    if not table.num_columns:
        yield from ({} for _ in range(table.num_rows))
        return
    for row in BlockAccessor.for_block(table).iter_rows(public_row_format=True):
        yield dict(row)


def _errors(table: pa.Table) -> list[str | None]:
    if table.schema.get_field_index(ERROR) < 0:
        return [None] * table.num_rows
    errors: list[str | None] = table.column(ERROR).to_pylist()
    return errors
