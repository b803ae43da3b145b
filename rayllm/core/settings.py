"""Every RAYLLM_* environment variable, declared once and read once.

The table in docs/configuration.md is generated from the fields below.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Self

from rayllm.core.errors import ConfigError

PREFIX = "RAYLLM_"
# Kubernetes puts these into every pod for each Service whose name begins with `rayllm`.
_KUBERNETES = re.compile(r"RAYLLM\w*?_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _setting(default: Any, doc: str, minimum: float | None = None, maximum: float | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True)
class Settings:
    """Settings from the environment. Field `log_level` is the variable `RAYLLM_LOG_LEVEL`, and so on."""

    log_level: str = _setting("INFO", "Level of RayLLM's own log lines.")
    resource_check: str = _setting(
        "auto",
        "Refuse at start a model that the cluster cannot hold: `always`, `never`, or `auto` (not where an "
        "autoscaler may add nodes).",
    )
    engine_start_timeout_s: float = _setting(
        3600.0, "Seconds an engine may take to load its weights and become ready.", minimum=0
    )
    engine_stall_timeout_s: float = _setting(
        10.0,
        "Seconds an engine with unfinished requests may neither respond, nor use CPU, nor wait for a CPU that others "
        "use, before it counts as hung and its replica ends.",
        minimum=1,
    )
    fork_server_idle_s: float = _setting(
        60.0,
        "Seconds that a node keeps the process from which it forks engines on the CPU after the last of them has "
        "ended, 10 to 86400. The next engine need not import vLLM while it is there; it takes 0.5 GB of memory.",
        minimum=10,
        maximum=86_400,
    )
    connect_timeout_s: float = _setting(5.0, "Seconds the router waits for a TCP connection to a replica.", minimum=0)

    url: str = _setting(
        "",
        "Server that `rayllm models`, `query`, `chat`, `batch status` and `keys show-usage` ask; empty is "
        "`OPENAI_BASE_URL` or `OPENAI_API_BASE`, else http://127.0.0.1:8000.",
    )

    cache_dir: str = _setting("~/.cache/rayllm", "Folder for what is fetched or unpacked; every node has its own.")
    cache_max_gb: float = _setting(
        0.0,
        "Gigabytes (10⁹ bytes) that fetched weights and adapters may take of a node's disk; 0 is as much as it has. "
        "What was not used for longest makes room, what is in use never does.",
        minimum=0,
    )
    adapter_refresh_s: float = _setting(
        30.0, "Seconds between checks of the source of a used adapter for a newer version.", minimum=0
    )
    download_threads: int = _setting(16, "Ranges that a node fetches at once.", minimum=1)
    download_tries: int = _setting(
        6, "Tries in a row that bring nothing, with growing waits between them, until a download fails.", minimum=1
    )

    @property
    def cache_path(self) -> Path:
        """`cache_dir` as an absolute path."""
        return Path(self.cache_dir).expanduser().absolute()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Parse the RAYLLM_* variables; raises ConfigError for an unknown or invalid variable."""
        declared = {PREFIX + f.name.upper(): f for f in fields(cls)}
        values: dict[str, object] = {}
        for name, text in environment.items():
            if not name.startswith(PREFIX) or _KUBERNETES.fullmatch(name):
                continue
            if name not in declared:
                raise ConfigError(f"{name}: unknown environment variable; known are {', '.join(sorted(declared))}.")
            kind: Any = type(declared[name].default)
            try:
                values[declared[name].name] = kind(text)
            except ValueError:
                raise ConfigError(f"{name}: {text!r} is not a {kind.__name__}.") from None
        settings = cls(**values)  # type: ignore[arg-type]
        if settings.resource_check not in ("auto", "always", "never"):
            raise ConfigError("RAYLLM_RESOURCE_CHECK: must be auto, always or never.")
        for each in fields(cls):
            value, minimum, maximum = getattr(settings, each.name), each.metadata["minimum"], each.metadata["maximum"]
            if minimum is not None and not value >= minimum:
                raise ConfigError(f"{PREFIX}{each.name.upper()}: must be {minimum:g} or more.")
            if maximum is not None and not value <= maximum:
                raise ConfigError(f"{PREFIX}{each.name.upper()}: must be {maximum} or less.")
        if settings.log_level not in _LOG_LEVELS:
            raise ConfigError(f"RAYLLM_LOG_LEVEL: must be one of {', '.join(_LOG_LEVELS)}.")
        return settings


@cache
def settings() -> Settings:
    """The settings of this process, read on first use."""
    return Settings.from_environment(os.environ)
