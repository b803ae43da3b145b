"""Run the user's preprocess before the first stage and postprocess after the last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor

from rayllm.batch.rows import ERROR, Row, as_array, columns, failed, pack, reason, unpack
from rayllm.config.faults import did_you_mean
from rayllm.errors import RequestError

# Types that a function can change in place.
_MUTABLE = (list, dict, np.ndarray)

UserFunction = Callable[[Row], Mapping[str, Any]]


class Preprocess:
    """Maps input rows to the stages' data.

    Args:
        function: the user's preprocess; None takes the row itself.
        takes: keys that the stages accept; None accepts any.
        column: column for the data.
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
        # The errors of an earlier processor are neither for the function nor for the stages.
        inputs = table.drop_columns([ERROR]) if ERROR in table.column_names else table
        rows = [self._row(row, error) for row, error in zip(_rows(inputs), errors, strict=True)]
        return pack(table, self._column, rows)

    def _row(self, row: Row, error: str | None) -> Row:
        if error is not None:
            return {ERROR: error}
        try:
            return self._data(row)
        except Exception as problem:
            if self._stop_at_error:
                raise
            return failed({}, problem)

    def _data(self, row: Row) -> Row:
        if self._function is None:
            return {key: value for key, value in row.items() if self._takes is None or key in self._takes}
        try:
            data = self._function(row)
        except Exception as problem:
            message = f"preprocess raised {reason(problem)}; the row has the columns {', '.join(row)}."
            raise RequestError(message) from problem
        if not isinstance(data, Mapping):
            raise RequestError(f"preprocess must return a mapping, not {type(data).__name__}.")
        if self._takes is not None:
            # Columns of the input may be returned as they are; any other key is meant for the stages.
            for key in data.keys() - self._takes - row.keys():
                hint = did_you_mean(key, self._takes) or f"; known keys: {', '.join(sorted(self._takes))}."
                raise RequestError(f"preprocess returned an unknown key `{key}`{hint}")
        return {key: value for key, value in data.items() if self._takes is None or key in self._takes}


class Postprocess:
    """Maps the stages' data to output columns, beside the input's own.

    Args:
        function: the user's postprocess; None takes all results.
        column: column with the data.
        hidden: keys of the data that are not results.
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
        data = unpack(table, self._column)
        table = table.drop_columns([self._column])
        inputs = list(_rows(table))
        rows = [
            _changed(self._row(row, result), row, table.slice(index, 1))
            for index, (row, result) in enumerate(zip(inputs, data, strict=True))
        ]
        # A failed row keeps its input columns, so that it can be tried again.
        added = {**columns(rows, inputs), ERROR: [row.get(ERROR) for row in rows]}
        for name, values in added.items():
            array = as_array(name, values) if name != ERROR else pa.chunked_array([pa.array(values, pa.string())])
            index = table.schema.get_field_index(name)
            table = table.append_column(name, array) if index < 0 else table.set_column(index, name, array)
        return table

    def _row(self, row: Row, data: Row) -> Row:
        if data.get(ERROR) is not None:
            return {ERROR: data[ERROR]}
        results = {key: value for key, value in data.items() if key not in self._hidden}
        if self._function is None:
            return results
        try:
            output = _output(self._function, {**row, **results}, results)
        except RequestError as problem:
            if self._stop_at_error:
                raise
            return failed({}, problem)
        return {key: value for key, value in output.items() if key != "_outputs"}


def _changed(output: Row, row: Row, table: pa.Table) -> Row:
    """Drop unchanged columns from `output`, so that they keep the type that they have in the table.

    Args:
        output: columns for the output.
        row: the row that the user's function got.
        table: the same row, untouched.
    """
    # Identity does not rule out that the function changed a list or mapping in place.
    same = [key for key, value in output.items() if key in row and value is row[key]]
    if not any(isinstance(output[key], _MUTABLE) for key in same):
        return {key: value for key, value in output.items() if key not in same}
    original = next(_rows(table))
    return {key: value for key, value in output.items() if key not in same or not _equal(original[key], value)}


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _output(function: UserFunction, row: Row, results: Row) -> Mapping[str, Any]:
    try:
        output = function({**row, "_outputs": results})
    except Exception as problem:
        raise RequestError(f"postprocess raised {reason(problem)}; the row has {', '.join(row)}.") from problem
    if not isinstance(output, Mapping):
        raise RequestError(f"postprocess must return a mapping, not {type(output).__name__}.")
    return output


def _rows(table: pa.Table) -> Iterator[Row]:
    """Rows in the format of Ray Data's own `map`."""
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
