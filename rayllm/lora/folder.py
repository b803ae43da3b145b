"""Adapters in a folder of a disk that the replicas can read.

Two layouts: `<folder>/<base>:<adapter>/` and `<folder>/<adapter>/`. A base id with a slash is a folder in a folder.
"""

from __future__ import annotations

import json
from pathlib import Path

from rayllm.errors import RequestError
from rayllm.lora.names import AdapterName, parse_name

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


class AdapterFolder:
    """The adapters of one base model.

    Args:
        root: the folder.
        base: id of the base model.
    """

    def __init__(self, root: Path, base: str) -> None:
        self._root = root.resolve()
        self._base = base

    def find(self, name: AdapterName) -> Path | None:
        """The adapter's folder, or None where there is none."""
        for candidate in (self._root / str(name), self._root / name.adapter):
            # A link that leads out of the root is not ours to follow.
            if candidate.is_dir() and candidate.resolve().is_relative_to(self._root):
                return candidate
        return None

    def check(self, name: AdapterName, folder: Path) -> None:
        """Look into an adapter's folder before an engine does.

        Raises:
            RequestError: a file is missing or wrong; the message names it.
        """
        try:
            config = json.loads((folder / CONFIG).read_text())
            rank = config["r"]
        except FileNotFoundError:
            raise RequestError(f"The adapter `{name}` has no {CONFIG}.", "model", "adapter_broken") from None
        except (ValueError, KeyError, TypeError, OSError):
            message = f"The {CONFIG} of the adapter `{name}` is no configuration of a LoRA adapter."
            raise RequestError(message, "model", "adapter_broken") from None
        if not isinstance(rank, int) or rank < 1:
            raise RequestError(
                f"The adapter `{name}` has no valid rank `r` in its {CONFIG}.", "model", "adapter_broken"
            )
        if not (folder / WEIGHTS).is_file():
            raise RequestError(f"The adapter `{name}` has no {WEIGHTS}.", "model", "adapter_broken")

    def names(self) -> list[AdapterName]:
        """Every adapter there is, by name."""
        if not self._root.is_dir():
            return []
        configs = [*self._root.glob(f"*/{CONFIG}"), *self._root.glob(f"{self._base}:*/{CONFIG}")]
        found = {self._name_of(config.parent) for config in configs}
        return sorted((name for name in found if name), key=str)

    def _name_of(self, folder: Path) -> AdapterName | None:
        relative = str(folder.relative_to(self._root))
        name = parse_name(relative, [self._base])
        return name or (parse_name(f"{self._base}:{relative}", [self._base]) if ":" not in relative else None)
