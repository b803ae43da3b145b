"""Digests of a prompt's beginnings, the same in every process."""

from __future__ import annotations

from array import array
from hashlib import blake2b

# Bytes that are looked at, about 130,000 tokens: what two longer prompts share is told by these as well.
_MOST = 512 * 1024
# Token ids that are looked at of one list: they cost far more time than texts do.
_MOST_IDS = 32 * 1024
# A long text is also marked inside, each mark half as far again as the one before: what is found to be shared of it is
# at least two thirds of what is.
_FIRST_MARK = 2048
# Images and sounds within the JSON are long ASCII without a space: their ends tell them apart.
_MEDIA_END = 512


class Chain:
    """A prompt's beginnings: `digests`, each of all that came before it, and `sizes`, the bytes that each covers.

    `size` is what was looked at, `unseen` what was not; media count as what was looked at of them.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)
        self._next_mark = _FIRST_MARK
        self.digests: list[int] = []
        self.sizes: list[int] = []
        self.size = 0
        self.unseen = 0

    def add_text(self, text: str) -> None:
        """Append a text."""
        if len(text) > 4 * _MEDIA_END and _is_medium(text):
            text = f"{text[:_MEDIA_END]}{len(text)}{text[-_MEDIA_END:]}"
        seen = text[: max(0, _MOST - self.size)]
        self.unseen += len(text) - len(seen)
        self._add(_encoded(seen))

    def add_ids(self, ids: list[int]) -> None:
        """Append token ids; four bytes each, as much as a token's text usually has.

        Raises:
            TypeError, OverflowError: they are none.
        """
        seen = array("I", ids[: max(0, min(_MOST_IDS, (_MOST - self.size) // 4))])
        self.unseen += 4 * (len(ids) - len(seen))
        self._add(seen.tobytes())

    def mark(self) -> None:
        """Note the digest of all so far, if there is more than at the mark before."""
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


def _is_medium(text: str) -> bool:
    start = text[: 2 * _MEDIA_END]
    return start.isascii() and " " not in start


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
