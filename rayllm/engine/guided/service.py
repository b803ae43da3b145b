"""Custom guided decoding of one replica."""

import logging
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Self

from rayllm.config.model import GuidedDecoding
from rayllm.core.errors import ConfigError
from rayllm.engine.guided.backend import Backends
from rayllm.engine.guided.failure_reports import Failures
from rayllm.engine.guided.serving_hooks import guide_calls
from rayllm.engine.guided.worker_messages import WorkerEnvironment
from rayllm.engine.vllm import import_shims

logger = logging.getLogger(__name__)

# Class path for the engine argument `logits_processors`.
PROCESSOR = "rayllm.engine.guided.processor:GuidedProcessor"

# NVIDIA NIM's variables; `guided_decoding` in the model's file takes precedence.
_TRUST = "NIM_TRUST_CUSTOM_CODE"
_FOLDER = "NIM_CUSTOM_GUIDED_DECODING_BACKENDS"
_DEFAULT = "NIM_GUIDED_DECODING_BACKEND"


def chosen_folder(config: GuidedDecoding | None, environment: Mapping[str, str]) -> tuple[Path, str | None] | None:
    """The folder of backends and the default backend; None without custom guided decoding.

    Raises:
        ConfigError: there are backends but no permission to run their code, or the file has options for backends but no
            folder.
    """
    config = config or GuidedDecoding()
    folder = config.backends_dir or environment.get(_FOLDER)
    if not folder:
        _check_unused(config)
        return None
    if not config.trust_custom_code and environment.get(_TRUST) != "1":
        if config == GuidedDecoding():
            # As with NIM: the feature is off, and requests that name a backend are refused.
            return None
        raise ConfigError(
            f"guided_decoding.backends_dir: {folder} holds Python code; set `guided_decoding.trust_custom_code: true` "
            f"(or {_TRUST}=1) to run it."
        )
    default = config.default_backend or environment.get(_DEFAULT, "").strip("/") or None
    return Path(folder), default


def _check_unused(config: GuidedDecoding) -> None:
    for key in ("default_backend", "trust_custom_code"):
        if getattr(config, key):
            raise ConfigError(
                f"guided_decoding.{key}: there are no backends; name their folder in `guided_decoding.backends_dir` "
                f"(or {_FOLDER}), or leave `{key}` out."
            )


class GuidedService:
    """Loaded backends, and the server for workers' failure reports."""

    def __init__(self, backends: Backends, failures: Failures) -> None:
        self._backends = backends
        self._failures = failures

    @classmethod
    async def start(
        cls,
        folder: Path,
        default: str | None,
        cache: Path,
        host: str,
        environment: MutableMapping[str, str] = os.environ,
    ) -> Self:
        """Load the backends, and set the workers' variables in `environment`, which the engine's processes inherit.

        Call before the engine starts.

        Args:
            folder: the folder of backends.
            default: name of the backend for requests that name none.
            cache: folder below which wheels are unpacked.
            host: address at which workers reach this machine.
            environment: receives the workers' variables.

        Raises:
            ConfigError: lists every error of every backend.
        """
        import_shims.install()
        backends = Backends.load(folder, default, cache)
        failures = Failures()
        await failures.listen(host)
        environment.update(WorkerEnvironment(folder, cache, failures.address).variables(environment))
        return cls(backends, failures)

    def attach(self, state: Any) -> None:
        """Wrap the calls of vLLM's application, whose `state` is given. Call once."""
        guide_calls(state, self._backends, self._failures)

    async def stop(self) -> None:
        """Stop listening."""
        await self._failures.close()
