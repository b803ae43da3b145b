"""A fake driver of NVIDIA's, which programs load as they load the real one.

Its NVML tells of the cards that a file names, so that Ray, vLLM and `nvidia-smi` see them. Its CUDA has no device, and
writes down who calls it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
TOOLKIT = Path(sysconfig.get_path("purelib"), "nvidia", "cu13")
_FUNCTION = re.compile(r"CUresult\s+(cu[A-Z]\w*)\s*\(")
_SMI = """#!/bin/sh
case "$1" in --query-gpu=name,memory.total,driver_version,mig.mode.current) ;; *) exit 2 ;; esac
exec cat "${FAKE_DRIVER%.json}.csv"
"""


@dataclass(frozen=True)
class Card:
    """A GPU as NVML tells of it; `memory` is in MiB."""

    name: str
    memory: int
    capability: str


def insert(cards: Path, card: Card, count: int = 1, driver: str = "580.95.05") -> None:
    """Have the machine whose cards are in that file have these. Running programs notice when they ask again."""
    cards.write_text(json.dumps(asdict(card) | {"count": count, "driver": driver}))
    cards.with_suffix(".csv").write_text(f"{card.name}, {card.memory}, {driver}, [N/A]\n" * count)


class Driver:
    """The libraries and `nvidia-smi` in a folder, with the cards of a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cards = folder / "cards.json"
        self._log = folder / "calls"
        functions = set(_FUNCTION.findall(self._compile("-E", "-include", "cuda.h", "-x", "c", os.devnull)))
        # A driver keeps older versions of each function.
        functions |= {re.sub(r"_v\d+$", "", name) for name in functions}
        written = (HERE / "libcuda.c").read_text()
        rest = sorted(name for name in functions if f"int {name}(" not in written)
        (folder / "functions.h").write_text("\n".join(f"FUNCTION({name})" for name in rest))
        for source, library in (("nvml.c", "libnvidia-ml.so.1"), ("libcuda.c", "libcuda.so.1")):
            to = ["-o", str(folder / library), f"-Wl,-soname,{library}"]
            self._compile("-shared", "-fPIC", "-O1", f"-I{folder}", *to, str(HERE / source))
        tool = folder / "nvidia-smi"
        tool.write_text(_SMI)
        tool.chmod(0o755)

    def _compile(self, *arguments: str) -> str:
        command = ["gcc", f"-I{TOOLKIT / 'include'}", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    def insert(self, card: Card, count: int = 1, driver: str = "580.95.05") -> None:
        """Have the machine have these cards."""
        insert(self._cards, card, count, driver)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs that find the driver."""
        return os.environ | {
            "FAKE_DRIVER": str(self._cards),
            "FAKE_CUDA_LOG": str(self._log),
            "LD_LIBRARY_PATH": str(self.folder),
            "PATH": os.pathsep.join([str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]]),
            # Nothing is to be fetched.
            "HF_HUB_OFFLINE": "1",
        }

    def run(self, *arguments: str, **variables: str) -> str:
        """What a Python program prints that finds the driver."""
        command = [sys.executable, *arguments]
        environment = self.environment | variables
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1], check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def calls(self) -> list[str]:
        """The functions of CUDA that processes have called since the last question, each with the process's title."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return lines
