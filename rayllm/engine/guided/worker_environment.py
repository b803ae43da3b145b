"""What the engine's worker processes are told: they inherit or are given the replica's environment.

The names begin with `_`, since they are no settings for people: `rayllm.settings` holds those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rayllm.errors import ConfigError

PREFIX = "_RAYLLM_GUIDED_"
# vLLM gives its Ray workers only variables with known prefixes; a list with commas adds to them.
_VLLM_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"


@dataclass(frozen=True)
class WorkerEnvironment:
    """Where a worker finds the backends, where it unpacks wheels, and `report`, the `host:port` of `Failures`."""

    folder: Path
    cache: Path
    report: str

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The variables to set in the replica's process before the engine starts; `environment` is its present one."""
        copied = [prefix for prefix in environment.get(_VLLM_PREFIXES, "").split(",") if prefix and prefix != PREFIX]
        return {
            PREFIX + "FOLDER": str(self.folder.absolute()),
            PREFIX + "CACHE": str(self.cache.absolute()),
            PREFIX + "REPORT": self.report,
            _VLLM_PREFIXES: ",".join([*copied, PREFIX]),
        }

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> WorkerEnvironment:
        """The worker's side.

        Raises:
            ConfigError: the replica did not set the variables, or they did not get here.
        """
        try:
            folder, cache, report = (environment[PREFIX + name] for name in ("FOLDER", "CACHE", "REPORT"))
        except KeyError as error:
            raise ConfigError(f"Guided decoding: the variable {error} did not reach the engine's worker.") from None
        return cls(Path(folder), Path(cache), report)
