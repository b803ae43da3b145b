"""Resource limits of a subprocess that works on a client's constraint."""

from __future__ import annotations

import resource
import signal

from rayllm.errors import ConstraintNotCheckedError

CPU_S = 2
# Under load a process gets less than a core.
WALL_S = 10
MEMORY_BYTES = 1 << 30

TOO_COSTLY = "takes too long or too much memory to compile; make it simpler"


def limit_process() -> None:
    """Set this process's limits; memory is counted on top of its present use."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_S)


def is_out_of_time(exit_code: int) -> bool:
    """Whether the process ran into the wall-clock limit, which means that it got too little CPU time."""
    return exit_code == -signal.SIGALRM


def busy() -> ConstraintNotCheckedError:
    """The error for a constraint whose process ran out of time."""
    return ConstraintNotCheckedError("The server is too busy to check this structured-output constraint; try again.")
