"""The `rayllm` command in a process of its own that need not import anything: a server forks it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rayllm.cli.main import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        __name__,
        *(f"rayllm.cli.commands.{verb}" for verb in ("build", "format_prompt", "gen_config", "plan", "validate")),
    ]
)


def rayllm(
    *arguments: str, stdin: str = "", folder: Path | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """What the command prints, and its exit code.

    Args:
        arguments: those of the command.
        folder: the working directory; None for this process's.

    Raises:
        TimeoutError: the command did not end in time, and was killed.
    """
    with tempfile.TemporaryDirectory() as streams:
        files = [Path(streams) / name for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        process = _CONTEXT.Process(target=_run, args=(arguments, files, folder or Path.cwd(), dict(os.environ)))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"rayllm {' '.join(arguments)}: {files[2].read_text()}")
        return subprocess.CompletedProcess(arguments, process.exitcode, files[1].read_text(), files[2].read_text())


def _run(arguments: tuple[str, ...], files: list[Path], folder: Path, environment: dict[str, str]) -> None:
    for descriptor, file in enumerate(files):
        opened = os.open(file, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["rayllm", *arguments]
    main()
