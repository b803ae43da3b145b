"""What this machine has."""

import os
import platform
import re
import resource
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from rayllm.cli.shared.application import DEFAULT_ADDRESS, Listener, check_free
from rayllm.core.errors import ClusterError, ConfigError
from rayllm.core.settings import Settings
from rayllm.plan.cores import this_machine
from rayllm.plan.cpu import Cpu, memory_bytes, this_cpu
from rayllm.plan.cpu_cache import free_memory
from rayllm.plan.gpus import GPUS, Gpu

_FIELDS = "name,memory.total,driver_version,mig.mode.current"
_QUERY = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
# Of the memory that NVIDIA's tool reports, what CUDA reports, or a little less.
_VISIBLE_SHARE, _LEAST_VISIBLE = 0.975, 0.94
# In NVIDIA's name: words in capitals up to the first with a digit.
_MODEL = re.compile(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)")
_SHARED_MEMORY = Path("/dev/shm")
# Packages beside RayLLM's own requirements that tell which build is installed.
_COMPANIONS = {"torchvision", "torchaudio", "nvidia-cuda-runtime"}


@dataclass(frozen=True)
class LocalGpu:
    """A GPU: NVIDIA's name, memory in MiB, the driver's version, and whether the GPU is divided by MIG."""

    name: str
    memory_mib: int
    driver: str
    has_mig: bool = False

    @property
    def accelerator_type(self) -> str:
        """The name that Ray gives the GPU. Source: ray._private.accelerators.nvidia_gpu, Ray 2.60."""
        found = _MODEL.match(self.name)
        return (found[1] if found else self.name.removeprefix("NVIDIA ")).replace(" ", "-")

    @property
    def kind(self) -> Gpu | None:
        """The GPU's type and memory, from RayLLM's table or NVIDIA's tool; None with MIG, whose parts vary."""
        if self.has_mig:
            return None
        for gpu in GPUS:
            # Boards of the same name may have another memory.
            is_as_large = _LEAST_VISIBLE < gpu.memory_gib * 1024 / self.memory_mib <= 1
            if is_as_large and gpu.name.removesuffix("-40G").removesuffix("-80G") == self.accelerator_type:
                return gpu
        return Gpu(self.accelerator_type, round(self.memory_mib / 1024 * _VISIBLE_SHARE, 2))


def local_gpus() -> list[LocalGpu]:
    """The GPUs of this machine; empty without a GPU or driver."""
    try:
        result = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    # A GPU without memory of its own, such as GB10, has the machine's.
    text = result.stdout.replace(", [N/A], ", f", {memory_bytes() >> 20}, ")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        LocalGpu(row[0], int(row[1]), row[2], "Enabled" in row) for row in rows if len(row) > 2 and row[1].isdigit()
    ]


def known_gpus() -> tuple[Gpu, ...]:
    """The GPUs whose memory is known: those of RayLLM's table, and this machine's."""
    local = {gpu.kind.name: gpu.kind for gpu in local_gpus() if gpu.kind}
    return tuple((local | {gpu.name: gpu for gpu in GPUS}).values())


@dataclass(frozen=True)
class Folder:
    """A folder that RayLLM writes to.

    Attributes:
        writable: whether a file can be written, and the folder be made if it does not exist.
        free: free bytes of the file system.
        size: bytes of the file system.
    """

    purpose: str
    path: Path
    exists: bool
    writable: bool
    free: int
    size: int


@dataclass(frozen=True)
class Machine:
    """A machine; sizes are in bytes.

    Attributes:
        requirements: RayLLM's requirements, with those of its engines as extras.
        packages: versions of the installed distributions by name.
        shared_memory: free bytes in /dev/shm; None without /dev/shm.
        compiler: path of a C compiler; None without one.
        settings_fault: what is wrong with the RAYLLM_* variables, or "".
        port_fault: what is wrong with the default port, or "".
    """

    python: str
    system: str
    requirements: tuple[Requirement, ...]
    packages: Mapping[str, str]
    cores: int
    cpu: Cpu | None
    free_memory: int
    shared_memory: int | None
    open_files: int
    has_hub_token: bool
    has_python_headers: bool = True
    compiler: str | None = None
    gpus: tuple[LocalGpu, ...] = ()
    folders: tuple[Folder, ...] = ()
    settings_fault: str = ""
    port_fault: str = ""
    port: int = DEFAULT_ADDRESS["port"]


def read_machine(environment: Mapping[str, str]) -> Machine:
    """Inspect this machine, for a process with the given environment variables."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        settings, fault = Settings.from_environment(environment), ""
    except ConfigError as error:
        settings, fault = Settings(), error.message
    folders = {
        "weights and adapters": settings.cache_path,
        "the Hugging Face hub": Path(HF_HUB_CACHE),
        "Ray": Path(environment.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray"),
    }
    requirements = tuple(map(Requirement, requires("rayllm") or ()))
    return Machine(
        python=platform.python_version(),
        system=platform.system(),
        requirements=requirements,
        packages=package_versions({one.name for one in requirements} | _COMPANIONS),
        cores=this_machine().available,
        cpu=this_cpu(),
        free_memory=free_memory(),
        shared_memory=shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        has_hub_token=bool(get_token()),
        has_python_headers=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        compiler=next(filter(None, map(shutil.which, (environment.get("CC", "gcc"), "gcc", "clang"))), None),
        gpus=tuple(local_gpus()),
        folders=tuple(read_folder(purpose, path) for purpose, path in folders.items()),
        settings_fault=fault,
        port_fault=_port_fault(),
    )


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of the installed distributions among `names`, without importing any."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def read_folder(purpose: str, path: Path) -> Folder:
    """Inspect a folder, which need not exist."""
    above = path
    while not above.exists():
        above = above.parent
    usage = shutil.disk_usage(above)
    writable = above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    return Folder(purpose, path, path.exists(), writable, usage.free, usage.total)


def _port_fault() -> str:
    try:
        check_free([Listener("", **DEFAULT_ADDRESS)])
    except ClusterError as error:
        return error.message.partition(". ")[0]
    return ""
