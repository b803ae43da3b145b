"""Headers of safetensors files, valid and broken."""

from __future__ import annotations

import json
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from rayllm.sources.safetensors import Tensor, read_complete_file
from tests.unit.lora.files import safetensors, with_header

WHOLE = safetensors({"a": (2, 3)})


def read(tmp_path: Path, content: bytes) -> dict[str, Tensor]:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    return read_complete_file(path)


def test_reads_files_of_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors: dict[str, Any] = {
        "a": np.zeros((2, 3), np.float32),
        "b": np.zeros((), np.int64),
        "c": np.zeros((0, 5), np.uint8),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    assert read_complete_file(path) == {"a": Tensor("F32", (2, 3)), "b": Tensor("I64", ()), "c": Tensor("U8", (0, 5))}


def entry(dtype: Any = "U8", shape: Any = (2, 3), data_offsets: Any = (0, 6)) -> bytes:
    return with_header(
        json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": data_offsets}}).encode(), b"6" * 6
    )


def test_valid_entry(tmp_path: Path) -> None:
    assert read(tmp_path, entry()) == {"a": Tensor("U8", (2, 3))}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08\0\0",
        struct.pack("<Q", 0),
        struct.pack("<Q", 1) + b"{",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        struct.pack("<Q", 3) + b"{}",
        WHOLE[:-1],
        WHOLE + b"\0",
    ],
)
def test_truncated_or_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is truncated or no|its size is not") as caught:
        read(tmp_path, content)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        with_header(b"no json"),
        with_header(b"\xff\xfe{}"),
        with_header(b"[]"),
        with_header(b'{"a": 7}'),
        with_header(b'{"a": {}}'),
        with_header(b"[" * 100_000),
        with_header(b'{"a":' * 100_000),
        with_header(b'{"a": {"dtype": "U8", "shape": ' + b"[" * 100_000),
        entry(data_offsets=(-6, 0)),
        entry(data_offsets=(6, 0)),
        entry(data_offsets=(0, 5)),
        entry(data_offsets=(0, 6, 7)),
        entry(data_offsets=("0", "6")),
        entry(data_offsets=None),
        entry(dtype="new", data_offsets=(0, float("inf"))),
        entry(dtype="new", data_offsets=(0, float("nan"))),
        entry(dtype="new", data_offsets=(0, 6.5)),
        entry(shape=(2, 4)),
        entry(shape=(-2, -3)),
        entry(shape=(2.0, 3)),
        entry(shape=(True, 6)),
        entry(shape="23"),
        entry(shape=6),
    ],
    ids=lambda content: repr(content[8:80]),
)
def test_broken_header_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match="its header is broken"):
        read(tmp_path, content)


def test_offsets_beyond_the_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its size is not"):
        read(tmp_path, entry(shape=(2**40,), data_offsets=(0, 2**40)))


def test_unknown_dtype_is_accepted(tmp_path: Path) -> None:
    assert read(tmp_path, entry(dtype="NEW")) == {"a": Tensor("NEW", (2, 3))}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("U8"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner)
    ),
)


@given(st.binary(max_size=40) | JSON.map(lambda value: with_header(json.dumps(value).encode())))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with suppress(ValueError):
            read_complete_file(Path(file.name))
