"""Messages from the replica to the engine's workers: environment variables, and an envelope in each guided request.

The variables' names begin with `_`: they are internal, unlike those in `rayllm.core.settings`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rayllm.core.errors import ConfigError

PREFIX = "_RAYLLM_GUIDED_"
# vLLM passes only variables with known prefixes to Ray workers; this variable adds prefixes, separated by commas.
_VLLM_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker needs to load the backends and to report failures to `report`, the `host:port` of `Failures`."""

    folder: Path
    cache: Path
    report: str

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables to add to `environment`, the replica's, before the engine starts."""
        copied = [prefix for prefix in environment.get(_VLLM_PREFIXES, "").split(",") if prefix and prefix != PREFIX]
        return {
            PREFIX + "FOLDER": str(self.folder.absolute()),
            PREFIX + "CACHE": str(self.cache.absolute()),
            PREFIX + "REPORT": self.report,
            _VLLM_PREFIXES: ",".join([*copied, PREFIX]),
        }

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """Read the variables in a worker. Raises ConfigError if a variable is missing."""
        try:
            folder, cache, report = (environment[PREFIX + name] for name in ("FOLDER", "CACHE", "REPORT"))
        except KeyError as error:
            raise ConfigError(f"Guided decoding: the variable {error} did not reach the engine's worker.") from None
        return cls(Path(folder), Path(cache), report)


# Key in a request's `vllm_xargs`; clients may not set it.
KEY = "rayllm_guided"


@dataclass(frozen=True)
class Envelope:
    """A guided request for the workers: the backend's name, "chat" or "completion", the body, and a ticket's id."""

    backend: str
    type: str
    request: dict[str, Any]
    ticket: str

    def pack(self) -> str:
        """The envelope as JSON text."""
        return json.dumps(vars(self))

    @classmethod
    def unpack(cls, text: str) -> Self:
        """Read an envelope from the JSON text of `pack`. Raises ValueError or TypeError for another text."""
        return cls(**json.loads(text))
