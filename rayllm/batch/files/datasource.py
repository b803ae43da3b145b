"""Ray Data source for a file of lines, read in pieces by many tasks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from rayllm.sources.storage import open_folder

# Rows are several times larger than their lines.
_PIECE_LINES, _PIECE_BYTES = 512, 64 * 1024 * 1024


def open_lines(address: str) -> BinaryIO:
    """Open the file at `address` to iterate over its lines.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    filesystem, path = open_folder(address)
    return io.BufferedReader(filesystem.open_input_file(path), 2**20)


class LineSource(Datasource):  # type: ignore[misc]  # Ray has no types
    """Source with at most one row per line.

    Args:
        address: the file: a path, `s3://…` or `gs://…`.
        parse: maps the lines of a piece, and the number of its first line, to rows.
    """

    def __init__(self, address: str, parse: Callable[[list[bytes], int], list[dict[str, Any]]]) -> None:
        self._address = address
        self._parse = parse
        self._pieces = list(_pieces(address))
        self._size = sum(size for _, size, _ in self._pieces)

    def estimate_inmemory_data_size(self) -> int:
        return self._size

    def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
        return [self._task(*piece) for piece in self._pieces]

    def _task(self, start: int, size: int, first: int) -> ReadTask:
        address, parse = self._address, self._parse

        def read() -> Iterable[pa.Table]:
            filesystem, path = open_folder(address)
            with filesystem.open_input_file(path) as file:
                file.seek(start)
                lines = file.read(size).split(b"\n")
            return [pa.Table.from_pylist(parse(lines, first))]

        return ReadTask(read, BlockMetadata(None, size, [address], None))


def _pieces(address: str) -> Iterator[tuple[int, int, int]]:
    """Offset and size of each piece in bytes, and the number of its first line."""
    start = size = first = 0
    with open_lines(address) as lines:
        for number, line in enumerate(lines):
            if number - first == _PIECE_LINES or (size and size + len(line) > _PIECE_BYTES):
                yield start, size, first + 1
                start, size, first = start + size, 0, number
            size += len(line)
    if size:
        yield start, size, first + 1
