"""What a conversion has to say: what became of keys, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rayllm.config.legacy import Rewriting, as_written

Kind = Literal["renamed", "added", "not_carried", "secret"]
"""`renamed`: said by another key or value now; `added`: an older default, written out; `not_carried`: gone; `secret`: a
reference stands in its place."""


@dataclass(frozen=True)
class Note:
    """What became of one key, which is named as the file that was read has it."""

    key: str
    kind: Kind
    text: str


class Findings:
    """Notes and faults of one file, or of the part of it that is below `prefix`.

    Keys are given as they are called when something is found; what was moved before is told under its old name.
    """

    def __init__(self, prefix: str = "") -> None:
        self.notes: list[Note] = []
        self.faults: list[str] = []
        self._prefix = prefix
        self._moves: list[Rewriting] = []

    def take(self, rewritings: Iterable[Rewriting]) -> None:
        """Note what `rayllm.config.legacy.upgrade` did."""
        for each in rewritings:
            if not each.new:
                self.not_carried(each.key, each.why)
            elif each.why:
                self.rewritten(each.key, each.why)
            else:
                self.renamed(each.key, *each.new)

    def renamed(self, key: str, *new: str) -> None:
        """`key` is now one or more other keys."""
        self._add(key, "renamed", f"is now {' and '.join(f'`{name}`' for name in new)}")
        self._moves.append(Rewriting(as_written(key, self._moves), new))

    def rewritten(self, key: str, how: str) -> None:
        """`key` has another value, which means the same."""
        self._add(key, "renamed", how)

    def added(self, key: str, why: str) -> None:
        """`key` stands in the result only."""
        self.notes.append(Note(self._prefix + key, "added", why))

    def not_carried(self, key: str, why: str) -> None:
        """`key` is not in the result."""
        self._add(key, "not_carried", f"is not carried over: {why}")

    def secret(self, key: str, name: str) -> None:
        """`key` held a secret; the environment variable `name` is referred to instead."""
        self._add(key, "secret", f"holds a secret, which is not written: export {name} before you deploy")

    def refuse(self, key: str, why: str) -> None:
        """`key` is at fault."""
        self.faults.append(f"{self._prefix}{as_written(key, self._moves)}: {why}")

    def written(self, key: str) -> str:
        """What the file that was read calls `key`."""
        return as_written(key, self._moves)

    def _add(self, key: str, kind: Kind, text: str) -> None:
        self.notes.append(Note(self._prefix + as_written(key, self._moves), kind, text))
