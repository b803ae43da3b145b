"""A file of lines as a source of Ray Data: read in pieces, by many tasks, wherever it lies."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from rayllm.storage import open_folder

_LINES_A_PIECE = 512


def open_lines(address: str) -> BinaryIO:
    """The file at `address`, to be gone through line by line and closed.

    Raises:
        FileNotFoundError: there is none.
    """
    filesystem, path = open_folder(address)
    return io.BufferedReader(filesystem.open_input_file(path), 2**20)


class LineSource(Datasource):  # type: ignore[misc]  # Ray has no types
    """Rows of a file, one a line at most.

    Args:
        address: the file: a path, `s3://…` or `gs://…`.
        parse: from the lines of a piece, and the number of the first one, to rows.
    """

    def __init__(self, address: str, parse: Callable[[list[bytes], int], list[dict[str, Any]]]) -> None:
        self._address = address
        self._parse = parse
        self._pieces = _pieces(address)
        self._size = sum(size for _, size, _ in self._pieces)

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of the file."""
        return self._size

    def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
        """One task a piece; how many run at once is Ray Data's affair."""
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


def _pieces(address: str) -> list[tuple[int, int, int]]:
    """Where the pieces of the file begin, how many bytes they have, and the number of their first line."""
    return list(_cut(address))


def _cut(address: str) -> Iterator[tuple[int, int, int]]:
    start = size = first = 0
    with open_lines(address) as lines:
        for number, line in enumerate(lines):
            if number - first == _LINES_A_PIECE:
                yield start, size, first + 1
                start, size, first = start + size, 0, number
            size += len(line)
    if size:
        yield start, size, first + 1
