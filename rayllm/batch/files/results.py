"""Results of a job: parts in Parquet while it runs, JSONL files at its end."""

import io
import json
import tempfile
import uuid
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayllm.batch.files.jsonl import ERRORS, OUTPUT, Counts, Fault, Line, response_line
from rayllm.batch.rows import ERROR
from rayllm.sources.storage import Folder

PARTS = "parts"
"""Folder of the parts, in the job's folder."""
_MAX_OPEN_PARTS = 16


def write_part(folder: Folder, rows: list[dict[str, Any]]) -> None:
    """Write a part: rows with `custom_id`, `line`, and either `status_code` and `response` or an error."""
    schema = {"custom_id": pa.string(), "line": pa.int64(), "status_code": pa.int64(), "response": pa.string()}
    texts = [{**row, "response": json.dumps(row.get("response"))} for row in rows]
    table = pa.Table.from_pylist(texts, pa.schema({**schema, ERROR: pa.string()}))
    with io.BytesIO() as content:
        pq.write_table(table, content)
        folder.write(f"{PARTS}/{uuid.uuid4().hex}.parquet", content.getvalue())


def answered(folder: Folder) -> set[int]:
    """The line numbers of the requests that have a result."""
    return set(_Parts(folder).positions)


def count_results(folder: Folder, counts: Counts, counted: set[str]) -> None:
    """Add the results in the parts that are not `counted` yet."""
    for name in set(folder.names(PARTS)) - counted:
        try:
            table = _read_part(folder, name, ["status_code", ERROR])
        except (pa.ArrowInvalid, FileNotFoundError):
            continue  # The part is being written, or an interrupted write was cleaned up.
        failed = sum(_has_failed(row) for row in table.to_pylist())
        counted.add(name)
        counts.failed += failed
        counts.completed += table.num_rows - failed


def write_results(folder: Folder, requests: Iterable[Line], unfinished: Fault | None) -> Counts:
    """Write the output and error files, in the order of the requests; returns the counts without the total.

    Args:
        unfinished: error for requests without a result; None leaves them out.
    """
    parts, counts = _Parts(folder), Counts()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        for request in requests:
            if (result := parts.result(request, unfinished)) is None:
                continue
            line, has_failed = result
            (errors if has_failed else output).write(line)
            counts.failed += has_failed
            counts.completed += not has_failed
        for name, file in ((OUTPUT, output), (ERRORS, errors)):
            if file.tell():
                file.seek(0)
                folder.write(name, file)
    return counts


class _Parts:
    """Results by line number."""

    def __init__(self, folder: Folder) -> None:
        self.positions: dict[int, tuple[str, int]] = {}
        for name in folder.names(PARTS):
            # An interrupted write leaves a truncated part.
            with suppress(pa.ArrowInvalid, FileNotFoundError):
                for index, number in enumerate(_read_part(folder, name, ["line"]).column("line").to_pylist()):
                    self.positions[number] = (name, index)
        # Results are roughly in the order of their requests, so few parts are needed at a time.
        self._part = lru_cache(_MAX_OPEN_PARTS)(lambda name: _read_part(folder, name))

    def result(self, request: Line, unfinished: Fault | None) -> tuple[bytes, bool] | None:
        """The line for the output or error file, and whether the request failed; None without a result."""
        if request.number not in self.positions:
            return (response_line(request.custom_id, None, None, unfinished), True) if unfinished else None
        name, index = self.positions[request.number]
        row = self._part(name).slice(index, 1).to_pylist()[0]
        if row[ERROR] is not None:
            return response_line(request.custom_id, None, None, Fault("request_failed", row[ERROR])), True
        response = json.loads(row["response"])
        return response_line(request.custom_id, row["status_code"], response, None), _has_failed(row)


def _read_part(folder: Folder, name: str, columns: list[str] | None = None) -> pa.Table:
    with folder.open(f"{PARTS}/{name}") as file:
        return pq.read_table(pa.BufferReader(file.read()), columns=columns)


def _has_failed(row: dict[str, Any]) -> bool:
    return row[ERROR] is not None or row["status_code"] >= 400
