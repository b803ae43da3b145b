"""The order of rows before an engine."""

from __future__ import annotations

import pyarrow as pa

from rayllm.batch.rows import Row, unpack


def sort_by_prefix(table: pa.Table, column: str) -> pa.Table:
    """Rows with equal beginnings next to each other, so that the second finds the first one's in the engine's cache."""
    keys = [_beginning(row) for row in unpack(table, column)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return table.take(pa.array(order, pa.int64()))


def _beginning(row: Row) -> tuple[str, list[int], str]:
    tokens = row.get("prompt_token_ids")
    try:
        beginning = [] if tokens is None else [int(token) for token in tokens]
    except (TypeError, ValueError):
        # The engine says what is wrong with them.
        beginning = []
    # Caches of adapters are their own.
    return str(row.get("model") or ""), beginning, str(row.get("prompt") or "")
