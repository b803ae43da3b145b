"""Checksums of files, compared with published check values."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.sources.items import Checksum
from rayllm.sources.transfer.checksums import file_checksum


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        # Check values of the content `123456789`: https://reveng.sourceforge.io/crc-catalogue/all.htm
        ("crc64nvme", "ae8b14860a799888"),
        ("crc32c", "e3069283"),
        ("crc32", "cbf43926"),
        ("md5", "25f9e794323b453885f5181f1b624d0b"),
        ("sha1", "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
        ("sha256", "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
        # printf 123456789 | git hash-object --stdin
        ("git", "e2e107ac61ac259b87c544f6e7a4eb03422c6c21"),
    ],
)
def test_checksum(tmp_path: Path, algorithm: str, value: str) -> None:
    (tmp_path / "file").write_bytes(b"123456789")
    assert file_checksum(tmp_path / "file", algorithm).value == value


def test_checksum_with_leading_zeros(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert file_checksum(tmp_path / "file", "crc32c").value == "00000000"
    assert Checksum.from_base64("crc32c", "AAAAAA==").value == "00000000"
