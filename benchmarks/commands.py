"""What a command costs that does nothing but start: the help, and a look at every shipped file.

python -m benchmarks.commands            print the table
python -m benchmarks.commands --write    also put it into docs/performance.md
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.compare import ROUNDS, publish, read_options

ROOT = Path(__file__).parent.parent
COMMAND = str(Path(sys.executable).with_name("rayllm"))
FOLDERS = ("models", "serve_configs", "deploy/serve_configs")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.yaml"))


def main() -> None:
    """Measure, and print or publish the table."""
    read_options(__doc__)
    commands = {
        "`rayllm --help`": ["--help"],
        f"`rayllm validate` of all {len(FILES)} shipped files": ["validate", *map(str, FILES)],
    }
    lines = []
    for name, arguments in commands.items():
        seconds = sorted(_cpu_s(arguments) for _ in range(ROUNDS))
        lines.append(f"| {name} | {statistics.median(seconds):.2f} ({seconds[0]:.2f}–{seconds[-1]:.2f}) |")
    publish("commands", "\n".join(["| command | CPU s |", "|---|---|", *lines]))


def _cpu_s(arguments: list[str]) -> float:
    """CPU seconds of the command, its children's too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([COMMAND, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
