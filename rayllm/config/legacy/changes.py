"""Record of what became of each key of an older file, and access to the nested mappings that YAML makes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rayllm.core.data_files import read_data

Mapping = dict[str, Any]
Kind = Literal["renamed", "added", "not_carried", "secret"]
"""`renamed`: another key or value replaces it; `added`: an older default, written out; `not_carried`: dropped;
`secret`: replaced by a reference."""


def tables() -> dict[str, Any]:
    """What became of older keys, by the names in data/keys.yaml."""
    raw: dict[str, Any] = read_data("rayllm.config.legacy", "keys.yaml")
    return raw


@dataclass(frozen=True)
class Change:
    """What became of one key, named as in the older file.

    `new` are the current keys for it; `why` explains a dropped key or a changed value.
    """

    key: str
    kind: Kind
    why: str = ""
    new: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The change as the predicate of a sentence about the key."""
        if self.new:
            # A key that only moved to the top would seem not to have moved.
            place = " at the top of the model's file" if self.key.endswith(f".{self.new[0]}") else ""
            return f"is now {' and '.join(f'`{name}`' for name in self.new)}{place}"
        return f"is not carried over: {self.why}" if self.kind == "not_carried" else self.why

    def __str__(self) -> str:
        """The change as a warning of a loaded file."""
        if self.kind == "not_carried":
            return f"`{self.key}` is ignored: {self.why}"
        return f"`{self.key}` {self.text if self.new else f'is rewritten: {self.why}'}"


class Changes:
    """Changes and faults of one file, or of a file's part below `prefix`.

    Callers pass current keys; the record has the keys of the older file.
    """

    def __init__(self, prefix: str = "") -> None:
        self.all: list[Change] = []
        self.faults: list[str] = []
        self._prefix = prefix
        self._old_by_new: dict[str, str] = {}

    def renamed(self, key: str, *new: str) -> None:
        """`key` has one or more new names."""
        old = self.original(key)
        self.all.append(Change(self._prefix + old, "renamed", new=new))
        for name in new:
            self._old_by_new.setdefault(name, old)

    def rewritten(self, key: str, how: str) -> None:
        """`key` has another value with the same meaning."""
        self.all.append(Change(self._prefix + self.original(key), "renamed", how))

    def added(self, key: str, why: str) -> None:
        """`key` is only in the result."""
        self.all.append(Change(self._prefix + key, "added", why))

    def dropped(self, key: str, why: str) -> None:
        """`key` is not in the result."""
        self.all.append(Change(self._prefix + self.original(key), "not_carried", why))

    def rename_in(self, holder: Mapping, old: str, new: str, where: str = "") -> None:
        """Rename a key of `holder`, which is at the path `where`, unless the new key is there too."""
        if old in holder and new not in holder:
            holder[new] = holder.pop(old)
            self.renamed(f"{where}{old}", f"{where}{new}")

    def drop_from(self, holder: Mapping, key: str, why: str, where: str = "") -> None:
        """Drop a key, if present, of `holder`, which is at the path `where`."""
        if key in holder:
            del holder[key]
            self.dropped(f"{where}{key}", why)

    def secret(self, key: str, variable: str) -> None:
        """`key` held a secret, which a reference to the environment variable replaces."""
        why = f"holds a secret, which is not written: export {variable} before you deploy"
        self.all.append(Change(self._prefix + self.original(key), "secret", why))

    def refuse(self, key: str, why: str) -> None:
        """`key` is at fault."""
        self.faults.append(f"{self._prefix}{self.original(key)}: {why}")

    def original(self, key: str) -> str:
        """The older file's path of `key`, which was perhaps renamed, as were perhaps its parents."""
        parents = [new for new in self._old_by_new if key == new or key.startswith(f"{new}.")]
        new = max(parents, key=len, default="")
        return self._old_by_new.get(new, "") + key[len(new) :]


def copied(value: Any) -> Any:
    """A deep copy without shared parts, which YAML aliases create."""
    return mapped(value, lambda text, where: text)


def mapped(value: Any, change: Callable[[str, str], str], where: str = "") -> Any:
    """A copy in which `change`, called with each text and the text's path, replaces the text; `value` is at `where`."""
    prefix = f"{where}." if where else ""
    if isinstance(value, str):
        return change(value, where)
    if isinstance(value, dict):
        return {key: mapped(item, change, f"{prefix}{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(item, change, f"{prefix}{index}") for index, item in enumerate(value)]
    return value


def at(config: Any, *keys: str) -> Mapping:
    """The mapping at the path `keys`; without a mapping there, a new and empty mapping."""
    value = config
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
