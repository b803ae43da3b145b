"""Run the user's preprocess before the first stage and postprocess after the last."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor

from rayllm.batch.rows import ERROR, Row, as_array, columns, failed, has_nulls_only, pack, reason, unpack, with_column
from rayllm.config.faults import did_you_mean
from rayllm.core.errors import RequestError

# Types that a function can change in place.
_MUTABLE = (list, dict, np.ndarray)

UserFunction = Callable[[Row], Mapping[str, Any]]


@dataclass(frozen=True)
class Preprocess:
    """Maps input rows to the stages' data.

    Args:
        function: the user's preprocess; None passes the row itself.
        takes: keys that the stages accept; None accepts any.
        stop_at_error: end the job at the first row that fails.
    """

    function: UserFunction | None
    takes: Collection[str] | None
    column: str
    stop_at_error: bool

    def __call__(self, table: pa.Table) -> pa.Table:
        if table.schema.get_field_index(self.column) >= 0:
            table = table.drop_columns([self.column])
        is_new = table.schema.get_field_index(ERROR) < 0
        errors: list[str | None] = [None] * table.num_rows if is_new else table.column(ERROR).to_pylist()
        # The errors of an earlier processor are neither for the function nor for the stages.
        inputs = table.drop_columns([ERROR]) if ERROR in table.column_names else table
        rows = [self._row(row, error) for row, error in zip(_rows(inputs), errors, strict=True)]
        return pack(table, self.column, rows)

    def _row(self, row: Row, error: str | None) -> Row:
        if error is not None:
            return {ERROR: error}
        try:
            return self._data(row)
        except Exception as problem:
            if self.stop_at_error:
                raise
            return failed({}, problem)

    def _data(self, row: Row) -> Row:
        if self.function is None:
            return {key: value for key, value in row.items() if self.takes is None or key in self.takes}
        data = _returned("preprocess", self.function, row)
        if self.takes is not None:
            # Columns of the input may be returned as they are; any other key is meant for the stages.
            for key in data.keys() - self.takes - row.keys():
                hint = did_you_mean(key, self.takes) or f"; known keys: {', '.join(sorted(self.takes))}."
                raise RequestError(f"preprocess returned an unknown key `{key}`{hint}")
        return {key: value for key, value in data.items() if self.takes is None or key in self.takes}


@dataclass(frozen=True)
class Postprocess:
    """Maps the stages' data to output columns, beside the input's own.

    All blocks of a job get the same columns of the same types, even if all rows of a block failed.

    Args:
        function: the user's postprocess; None keeps all results.
        stop_at_error: end the job at the first row that fails.
        example: made-up values of further results that a row may have.
        schema: all columns that a row gets; None keeps every result.
    """

    function: UserFunction | None
    column: str
    hidden: Collection[str]
    stop_at_error: bool
    results: Row = field(default_factory=dict)
    example: Row = field(default_factory=dict)
    schema: pa.Schema | None = None

    def __call__(self, table: pa.Table) -> pa.Table:
        data = unpack(table, self.column)
        table = table.drop_columns([self.column])
        inputs = list(_rows(table))
        rows = [
            _changed(self._row(row, result), row, table.slice(index, 1))
            for index, (row, result) in enumerate(zip(inputs, data, strict=True))
        ]
        errors = [row.pop(ERROR, None) for row in rows]
        for name, array in self._arrays(table, inputs, rows, all(errors)).items():
            table = with_column(table, name, array)
        return with_column(table, ERROR, pa.chunked_array([pa.array(errors, pa.string())]))

    def _row(self, row: Row, data: Row) -> Row:
        if data.get(ERROR) is not None:
            return {ERROR: data[ERROR]}
        results = {key: value for key, value in data.items() if key not in self.hidden}
        results = {**dict.fromkeys(self.results), **results}
        try:
            return _declared(self._output(row, results), self.schema)
        except RequestError as problem:
            if self.stop_at_error:
                raise
            return failed({}, problem)

    def _output(self, row: Row, results: Row) -> Row:
        if self.function is None:
            return results
        output = _returned("postprocess", self.function, {**row, **results, "_outputs": results})
        return {key: value for key, value in output.items() if key != "_outputs"}

    def _arrays(
        self, table: pa.Table, inputs: list[Row], rows: list[Row], all_failed: bool
    ) -> dict[str, pa.ChunkedArray]:
        """The columns to add or replace. A failed row keeps its input columns, to be tried again."""
        types = self._types()
        arrays = _typed(columns(rows, inputs, types), types)
        if self.schema is not None:
            return {name: _cast(array, types.get(name, array.type)) for name, array in arrays.items()}
        # Neither failed rows nor nulls tell what the function returns.
        is_unknown = all_failed or any(has_nulls_only(array.type) for array in arrays.values())
        if self.function is None or not (self.example or self.results) or not is_unknown:
            return arrays
        types = self._types_of_example(table, inputs)
        return _typed(columns(rows, inputs, types), types)

    def _types(self) -> dict[str, pa.DataType]:
        if self.schema is not None:
            return dict(zip(self.schema.names, self.schema.types, strict=True))
        return {} if self.function else _types_of(self.results)

    def _types_of_example(self, table: pa.Table, inputs: list[Row]) -> dict[str, pa.DataType]:
        """Types of the function's output for made-up results, from the first row for which the function succeeds."""
        for index, row in enumerate(inputs):
            example = deepcopy({**self.example, **self.results})
            with suppress(RequestError):
                return _types_of(_changed(self._output(row, example), row, table.slice(index, 1)))
        return {}


def _typed(values: Mapping[str, list[Any]], types: Mapping[str, pa.DataType]) -> dict[str, pa.ChunkedArray]:
    return {name: as_array(name, each, types.get(name)) for name, each in values.items()}


def _cast(array: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    # Only the input of a failed row may have another type.
    with suppress(pa.ArrowException):
        return array.cast(kind)
    return array


def _types_of(row: Row) -> dict[str, pa.DataType]:
    return {name: as_array(name, [value]).type for name, value in row.items()}


def _declared(row: Row, schema: pa.Schema | None) -> Row:
    """The columns of the schema. Refuses a value of another type than its column."""
    if schema is None:
        return row
    for name, kind in zip(schema.names, schema.types, strict=True):
        try:
            as_array(name, [row.get(name)], kind).cast(kind)
        except pa.ArrowException:
            found = type(row[name]).__name__
            raise RequestError(f"`{name}` is a {found}, but `output_schema` has {kind}.") from None
    return {name: row.get(name) for name in schema.names}


def _changed(output: Row, row: Row, table: pa.Table) -> Row:
    """Drop unchanged columns from `output`: they keep their type in `table`, which is the untouched `row`."""
    # Identity does not rule out that the function changed a list or mapping in place.
    same = [key for key, value in output.items() if key in row and value is row[key]]
    if not any(isinstance(output[key], _MUTABLE) for key in same):
        return {key: value for key, value in output.items() if key not in same}
    original = next(_rows(table))
    return {key: value for key, value in output.items() if key not in same or not _equal(original[key], value)}


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _returned(name: str, function: UserFunction, row: Row) -> Mapping[str, Any]:
    """What the user's function `name` returns. Raises RequestError if it fails, or returns no mapping."""
    try:
        output = function(row)
    except Exception as problem:
        names = ", ".join(key for key in row if key != "_outputs")
        raise RequestError(f"{name} raised {reason(problem)}; the row has the columns {names}.") from problem
    if not isinstance(output, Mapping):
        raise RequestError(f"{name} must return a mapping, not {type(output).__name__}.")
    return output


def _rows(table: pa.Table) -> Iterator[Row]:
    """Rows in the format of Ray Data's own `map`."""
    if not table.num_columns:
        yield from ({} for _ in range(table.num_rows))
        return
    for row in BlockAccessor.for_block(table).iter_rows(public_row_format=True):
        yield dict(row)
