"""Rows on their way through the stages of a processor.

The input's own columns stay as they are. What the stages work on is one mapping a row, pickled in a column of its own:
rows may hold what no common column type has room for, images and parameters that differ from row to row.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rayllm.errors import RayLLMError

Row = dict[str, Any]

ERROR = "__error__"
"""Column, and key of a row, with the reason why a row failed; null where it did not."""


class BrokenWorkerError(RayLLMError):
    """What a stage holds is broken for good: only another process can go on. No row is at fault."""


def unpack(table: pa.Table, column: str) -> list[Row]:
    """The mappings in `column`, one a row."""
    return [pickle.loads(value.as_buffer()) for value in table.column(column)]


def pack(table: pa.Table, column: str, rows: Sequence[Row]) -> pa.Table:
    """`table` with the mappings in `column`, which is replaced where it is there."""
    values = pa.array([pickle.dumps(row, protocol=5) for row in rows], pa.large_binary())
    index = table.schema.get_field_index(column)
    return table.append_column(column, values) if index < 0 else table.set_column(index, column, values)


def failed(row: Row, error: BaseException) -> Row:
    """`row` with the reason in it."""
    return {**row, ERROR: reason(error)}


def reason(error: BaseException) -> str:
    """An error in one line: ours as they are, others with their type."""
    # Half of a surrogate pair, as endpoints cut answers, has no place in a column.
    text = " ".join(str(error).split())[:2000].encode(errors="replace").decode()
    return text if isinstance(error, RayLLMError) else f"{type(error).__name__}: {text}"


def columns(rows: Sequence[Row], others: Sequence[Row]) -> dict[str, list[Any]]:
    """Rows as columns; a key that a row lacks is the other row's there, else null."""
    names = dict.fromkeys(name for row in rows for name in row)
    pairs = list(zip(rows, others, strict=True))
    return {name: [row[name] if name in row else other.get(name) for row, other in pairs] for name in names}


def as_array(name: str, values: Iterable[Any]) -> pa.ChunkedArray:
    """A column of Python values: Arrow's own type where there is one, else as Ray Data stores such values."""
    from ray.data.block import BlockAccessor

    # Not as tensors: where a failed row has none, Ray Data could not join them with those of other blocks.
    listed = [_nested(value) if isinstance(value, np.ndarray) else value for value in values]
    try:
        return pa.chunked_array([pa.array(listed)])
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        block = BlockAccessor.batch_to_arrow_block({name: listed})
        return block.column(name)


def _nested(array: Any) -> Any:
    """An array as lists of arrays of one dimension, which Arrow knows."""
    return array if array.ndim == 1 else [_nested(part) for part in array] if array.ndim else array.item()
