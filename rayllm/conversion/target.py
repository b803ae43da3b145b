"""Where converted files go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rayllm.config.named import file_name

_MODELS, _ADAPTERS = "model_config", "adapters"


@dataclass(frozen=True)
class Target:
    """Files in `folder`, or the one `file`; with neither, the one text goes to the caller."""

    folder: Path | None = None
    file: Path | None = None

    @property
    def place(self) -> Path | None:
        """The folder of a serve config, or of the one file; None where that is the caller's to choose."""
        return self.folder or (self.file.parent if self.file else None)

    @property
    def models(self) -> Path | None:
        """The folder of models' files."""
        return self.folder / _MODELS if self.folder else self.place

    def model_file(self, model_id: str) -> Path | None:
        """Where a model goes."""
        return self.folder / _MODELS / file_name(model_id) if self.folder else self.file

    def serve_file(self, source: Path) -> Path | None:
        """Where the serve config that was read from `source` goes."""
        return self.folder / source.name if self.folder else self.file

    def settings_file(self, base: str, adapter: str) -> Path:
        """Where generation settings of an adapter's own go, until they are put beside its weights."""
        folder = self.folder or Path()
        return folder / _ADAPTERS / file_name(base).removesuffix(".yaml") / adapter / "rayllm.yaml"

    def reference(self, model_id: str) -> str:
        """What a serve config of `folder` calls a model's file."""
        return f"./{_MODELS}/{file_name(model_id)}"
