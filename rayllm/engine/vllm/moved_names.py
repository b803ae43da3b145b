"""Private names of vLLM that moved between its versions, and the module that has each in the installed one.

A version newer than all in the table is taken to be like the newest.
"""

from __future__ import annotations

import importlib
from typing import Any

from packaging.version import Version

MOVED_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "build_app": (("0.26", "vllm.entrypoints.openai.api_server"), ("0.29", "vllm.entrypoints.launchers.app")),
    "init_app_state": (
        ("0.26", "vllm.entrypoints.openai.api_server"),
        ("0.29", "vllm.entrypoints.launchers.api_server.app_state"),
    ),
    "FrontendArgs": (("0.26", "vllm.entrypoints.openai.cli_args"), ("0.29", "vllm.entrypoints.launchers.cli_args")),
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
    """The module that has a name in a version of vLLM; None where it is not there yet."""
    modules = [module for series, module in MOVED_NAMES[name] if vllm.release >= Version(series).release]
    return modules[-1] if modules else None


def has(name: str) -> bool:
    """Whether the installed vLLM has a name of the table."""
    return module_of(name, installed_version()) is not None


def load(name: str) -> Any:
    """Import a name of the table from where the installed vLLM has it.

    Raises:
        LookupError: this version does not have it.
        ImportError: a version that is not in the table has moved it again.
    """
    module = module_of(name, installed_version())
    if module is None:
        raise LookupError(f"vLLM {installed_version()} has no `{name}`.")
    return getattr(importlib.import_module(module), name)


def installed_version() -> Version:
    """The version of the vLLM that is imported."""
    import vllm

    return Version(vllm.__version__)
