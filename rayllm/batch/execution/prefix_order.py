"""Sort rows by prompt prefix before an engine."""

from __future__ import annotations

import pyarrow as pa

from rayllm.batch.rows import Row, unpack


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
