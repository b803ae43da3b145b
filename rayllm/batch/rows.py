"""Rows between the stages of a processor.

The input's columns pass through untouched. The stages' data is one mapping per row, pickled in a separate column, since
Arrow has no common type for images, or for parameters that differ from row to row.
"""

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rayllm.core.errors import RayLLMError

Row = dict[str, Any]

ERROR = "__error__"
"""Column, and key of a row, with the reason why the row failed, or null."""


class BrokenWorkerError(RayLLMError):
    """A stage's process is broken for good, through no fault of a row: only another process can continue."""


def unpack(table: pa.Table, column: str) -> list[Row]:
    """The mappings in `column`, one per row."""
    return [pickle.loads(value.as_buffer()) for value in table.column(column)]


def pack(table: pa.Table, column: str, rows: Sequence[Row]) -> pa.Table:
    """`table` with the mappings in `column`, which is added or replaced."""
    values = pa.array([pickle.dumps(row, protocol=5) for row in rows], pa.large_binary())
    return with_column(table, column, values)


def with_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """`table` with a column added or replaced."""
    index = table.schema.get_field_index(name)
    return table.append_column(name, values) if index < 0 else table.set_column(index, name, values)


def failed(row: Row, error: BaseException) -> Row:
    """`row` marked as failed, with the reason."""
    return {**row, ERROR: reason(error)}


def reason(error: BaseException) -> str:
    """An error in one line, with the type of errors from other libraries."""
    # Arrow refuses lone surrogates, which truncated responses may hold.
    text = " ".join(str(error).split())[:2000].encode(errors="replace").decode()
    return text if isinstance(error, RayLLMError) else f"{type(error).__name__}: {text}"


def columns(rows: Sequence[Row], defaults: Sequence[Row], expected: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Transpose rows to columns, first the expected columns. A key that a row lacks comes from its default row."""
    names = dict.fromkeys((*expected, *(name for row in rows for name in row)))
    pairs = list(zip(rows, defaults, strict=True))
    return {name: [row[name] if name in row else default.get(name) for row, default in pairs] for name in names}


def as_array(name: str, values: Iterable[Any], expected: pa.DataType | None = None) -> pa.ChunkedArray:
    """Build a column of Python values, with an Arrow type if possible, else as Ray Data stores objects.

    Args:
        expected: type of the column in other blocks, if known; widened if the values need that.
    """
    from ray.data.block import BlockAccessor

    # Not tensors: with the null of a failed row, Ray Data could not concatenate the blocks.
    listed = [_nested(value) if isinstance(value, np.ndarray) else value for value in values]
    try:
        array = pa.array(listed)
        if expected is not None and array.type != expected:
            array = _widened(array, listed, expected)
        return pa.chunked_array([array])
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        block = BlockAccessor.batch_to_arrow_block({name: listed})
        return block.column(name)


def has_nulls_only(kind: pa.DataType) -> bool:
    """Whether any part of a type comes from nulls or empty lists only, which tells nothing about other blocks."""
    return pa.types.is_null(kind) or any(has_nulls_only(kind.field(index).type) for index in range(kind.num_fields))


def _widened(array: pa.Array, values: list[Any], expected: pa.DataType) -> pa.Array:
    """The array in a type that also fits the values of other blocks, if Arrow has such a type."""
    try:
        schemas = [pa.schema([("", kind)]) for kind in (expected, array.type)]
        return pa.array(values, pa.unify_schemas(schemas, promote_options="permissive").field(0).type)
    except pa.ArrowException:
        return array


def _nested(array: Any) -> Any:
    """Nested lists of one-dimensional arrays, which Arrow can convert."""
    return array if array.ndim == 1 else [_nested(part) for part in array] if array.ndim else array.item()


def sort_by_prefix(table: pa.Table, column: str) -> pa.Table:
    """Sort rows by their prompts, so that rows with a common prefix hit the engine's prefix cache."""
    keys = [_sort_key(row) for row in unpack(table, column)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return table.take(pa.array(order, pa.int64()))


def _sort_key(row: Row) -> tuple[str, list[int], str]:
    tokens = row.get("prompt_token_ids")
    try:
        token_ids = [] if tokens is None else [int(token) for token in tokens]
    except (TypeError, ValueError):
        token_ids = []  # The engine reports what is wrong with them.
    # Adapters do not share cache entries.
    return str(row.get("model") or ""), token_ids, str(row.get("prompt") or "")
