"""Layout of the converted files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rayllm.config.named import file_name

_MODELS = "model_config"


@dataclass(frozen=True)
class Target:
    """Output in `folder`, or in one `file`; with neither, the text of the one result goes to the caller."""

    folder: Path | None = None
    file: Path | None = None

    @property
    def place(self) -> Path | None:
        """The folder of a serve config, or of the one file; None if the caller chooses it."""
        return self.folder or (self.file.parent if self.file else None)

    @property
    def models(self) -> Path | None:
        """The folder of model files."""
        return self.folder / _MODELS if self.folder else self.place

    def model_file(self, model_id: str) -> Path | None:
        """The file for a model."""
        return self.folder / _MODELS / file_name(model_id) if self.folder else self.file

    def serve_file(self, source: Path) -> Path | None:
        """The file for the serve config read from `source`."""
        return self.folder / source.name if self.folder else self.file

    def reference(self, model_id: str) -> str:
        """Path of a model's file as written in a serve config of `folder`."""
        return f"./{_MODELS}/{file_name(model_id)}"
