"""Finds private names of vLLM that moved between versions. Newer versions than the table's count as the newest."""

import importlib
from typing import Any

from packaging.version import Version

MOVED_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "build_app": (("0.26", "vllm.entrypoints.openai.api_server"), ("0.29", "vllm.entrypoints.launchers.app")),
    "init_app_state": (
        ("0.26", "vllm.entrypoints.openai.api_server"),
        ("0.29", "vllm.entrypoints.launchers.api_server.app_state"),
    ),
    "FrontendArgs": (
        ("0.26", "vllm.entrypoints.openai.cli_args"),
        ("0.29", "vllm.entrypoints.launchers.cli_args"),
        ("0.33", "vllm.entrypoints.common.cli_args"),
    ),
    "create_error_response": (
        ("0.26", "vllm.entrypoints.serve.utils.error_response"),
        ("0.28", "vllm.entrypoints.serve.exception_handling.error_response"),
    ),
    "GenerationError": (("0.26", "vllm.entrypoints.openai.engine.protocol"), ("0.29", "vllm.exceptions")),
    "VLLMClientError": (("0.27", "vllm.exceptions"),),
    "GracefulHTTPError": (("0.29", "vllm.exceptions"),),
}
"""Name → the series that it came in or moved in, and its module from then on, in order."""


def module_of(name: str, vllm: Version) -> str | None:
    """The module of a name in a version of vLLM; None if the version does not have the name yet."""
    modules = [module for series, module in MOVED_NAMES[name] if vllm.release >= Version(series).release]
    return modules[-1] if modules else None


def has(name: str) -> bool:
    """Whether the installed vLLM has a name of the table."""
    return module_of(name, installed_version()) is not None


def load(name: str) -> Any:
    """Import a name of the table from the installed vLLM.

    Raises:
        LookupError: the installed version does not have the name yet.
        ImportError: a version newer than the table has moved the name again.
    """
    module = module_of(name, installed_version())
    if module is None:
        raise LookupError(f"vLLM {installed_version()} has no `{name}`.")
    return getattr(importlib.import_module(module), name)


def installed_version() -> Version:
    """The version of the vLLM that is imported."""
    import vllm

    return Version(vllm.__version__)
