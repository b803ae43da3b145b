"""Imports what each installed distribution has, in a process each, and prints what failed as JSON."""

from __future__ import annotations

import ctypes
import importlib
import io
import json
import multiprocessing
import sysconfig
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath

from rayllm.engine.vllm.environment import prepare_environment

# What wheels leave beside their packages by mistake.
_STRAYS = {"benchmarks", "build_backend", "build_utils", "example", "include", "samples", "tests"}
# Whose packages are not below their names: a .pth file adds a folder.
_CUTLASS = "nvidia_cutlass_dsl"
_SITE = Path(sysconfig.get_path("purelib"))


def module_names(distribution: Distribution) -> list[str]:
    """The outermost packages of a distribution, and its modules beside them."""
    files = [PurePath(str(file)) for file in distribution.files or ()]
    packages = {file.parent.parts for file in files if file.name == "__init__.py" and file.parent.parts}
    modules = {
        (file.name.partition(".")[0],) for file in files if len(file.parts) == 1 and file.suffix in (".py", ".so")
    }
    outermost = {
        parts for parts in packages | modules if not any(parts[:depth] in packages for depth in range(1, len(parts)))
    }
    return sorted(
        ".".join(parts)
        for parts in outermost
        if all(part.isidentifier() for part in parts) and not _STRAYS.intersection(parts) and parts[0] != _CUTLASS
    )


def fault(name: str) -> str:
    """Why a module cannot be imported, or a library loaded; "" if it can."""
    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(output):
            if name.endswith(".so"):
                importlib.import_module("torch")
                ctypes.CDLL(str(_SITE / name))
            else:
                importlib.import_module(name)
    except BaseException as error:  # some end the process
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def main() -> None:
    prepare_environment(0, gpu_share=1)
    names = sorted({"cutlass", *(name for each in distributions() for name in module_names(each))})
    names += [str(path.relative_to(_SITE)) for path in (_SITE / "vllm").rglob("*.so")]
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        faults = dict(zip(names, pool.map(fault, names, chunksize=1), strict=True))
    print(json.dumps({name: why for name, why in faults.items() if why}))


if __name__ == "__main__":
    main()
