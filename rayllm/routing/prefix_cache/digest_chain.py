"""Digests of prefixes of a text, the same in every process."""

from __future__ import annotations

from array import array
from hashlib import blake2b

# Bytes hashed, about 130,000 tokens.
_MAX_BYTES = 512 * 1024
# Token ids hashed of one list: they cost far more time than text.
_MAX_IDS = 32 * 1024
# A long text also ends prefixes within itself, each half as far again as the one before, so that at least two thirds
# of a shared beginning are found.
_FIRST_MARK = 2048
# Base64 images and audio are long ASCII without a space: only their ends are hashed.
_MEDIA_END = 512


class DigestChain:
    """Digests of growing prefixes: `digests`, and `sizes` in bytes.

    `size` counts the bytes hashed; of media only what was hashed counts.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)
        self._next_mark = _FIRST_MARK
        self.digests: list[int] = []
        self.sizes: list[int] = []
        self.size = 0

    def add_text(self, text: str) -> None:
        """Append a text."""
        if len(text) > 4 * _MEDIA_END and _is_media(text):
            text = f"{text[:_MEDIA_END]}{len(text)}{text[-_MEDIA_END:]}"
        self._add(text[: max(0, _MAX_BYTES - self.size)].encode("utf-8", "surrogatepass"))

    def add_ids(self, ids: list[int]) -> None:
        """Append token ids, as four bytes each: about what the text of a token has.

        Raises:
            TypeError, OverflowError: the values are not token ids.
        """
        self._add(array("I", ids[: max(0, min(_MAX_IDS, (_MAX_BYTES - self.size) // 4))]).tobytes())

    def mark(self) -> None:
        """End a prefix here, unless one ends here already."""
        if self.size > (self.sizes[-1] if self.sizes else 0):
            self.digests.append(int.from_bytes(self._hash.digest(), "big"))
            self.sizes.append(self.size)

    def _add(self, data: bytes) -> None:
        start = 0
        while self.size + len(data) - start >= self._next_mark:
            end = start + self._next_mark - self.size
            self._hash.update(data[start:end])
            self.size, start = self._next_mark, end
            self.mark()
            self._next_mark += self._next_mark // 2
        self._hash.update(data[start:])
        self.size += len(data) - start


def _is_media(text: str) -> bool:
    start = text[: 2 * _MEDIA_END]
    return start.isascii() and " " not in start
