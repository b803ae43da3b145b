"""Print how many lines of Python and how many rooms `rayllm/` has, beside its budget; exit with 1 if it has more.

A room is a package of `rayllm`, or of `rayllm.serving`, whose parts run in different processes. Blank lines, comments
and docstrings count.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rayllm"
MAX_LINES = 46_500
MAX_ROOMS = 24


def lines_by_room(package: Path = PACKAGE) -> Counter[str]:
    """Lines of Python in each room, "" for modules beside the rooms."""
    lines: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        folders = path.relative_to(package).parts[:-1]
        if "node_modules" not in folders:
            depth = 2 if folders[:1] == ("serving",) else 1
            lines["/".join(folders[:depth])] += len(path.read_text(encoding="utf-8").splitlines())
    return lines


def main() -> int:
    """Print the table."""
    lines = lines_by_room()
    for room, count in lines.most_common():
        print(f"{count:>7,}  {room or '(modules)'}")
    rooms = len([room for room in lines if room not in ("", "serving")])
    print(f"{lines.total():>7,}  lines of {MAX_LINES:,}, in {rooms} rooms of {MAX_ROOMS}")
    return int(lines.total() > MAX_LINES or rooms > MAX_ROOMS)


if __name__ == "__main__":
    sys.exit(main())
