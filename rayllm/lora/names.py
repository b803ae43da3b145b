"""Names of adapters: `base:adapter`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Names reach paths: no separators, no leading dot, nothing that a shell or a terminal would take for more than text.
_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")


@dataclass(frozen=True)
class AdapterName:
    """An adapter of a base model."""

    base: str
    adapter: str

    def __str__(self) -> str:
        return f"{self.base}:{self.adapter}"


def parse_name(name: str, bases: Iterable[str]) -> AdapterName | None:
    """What `name` means as an adapter of one of `bases`, or None where it means none.

    A base id may itself hold a colon, so the longest base that fits decides.
    """
    for base in sorted(bases, key=len, reverse=True):
        adapter = name.removeprefix(f"{base}:")
        if adapter != name and _ADAPTER.fullmatch(adapter) and ".." not in adapter:
            return AdapterName(base, adapter)
    return None
