"""Print how many lines of Python and how many rooms `rayllm/` has, beside its budget; exit with 1 if it has more.

A room is a package of `rayllm`, or of `rayllm.serving`, whose parts run in different processes. Blank lines, comments
and docstrings count. Files and functions have a budget each.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rayllm"
MAX_LINES = 45_000
MAX_ROOMS = 24
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60


def modules(package: Path = PACKAGE) -> Iterator[tuple[Path, str]]:
    """Paths in the package, with what the files contain."""
    for path in sorted(package.rglob("*.py")):
        if "node_modules" not in path.parts:
            yield path.relative_to(package), path.read_text(encoding="utf-8")


def lines_by_room(package: Path = PACKAGE) -> Counter[str]:
    """Lines of Python in each room, "" for modules beside the rooms."""
    lines: Counter[str] = Counter()
    for path, text in modules(package):
        folders = path.parts[:-1]
        depth = 2 if folders[:1] == ("serving",) else 1
        lines["/".join(folders[:depth])] += len(text.splitlines())
    return lines


def too_long(package: Path = PACKAGE) -> Iterator[str]:
    """Files and functions over their budget."""
    for path, text in modules(package):
        if (size := len(text.splitlines())) > MAX_FILE_LINES:
            yield f"{path} has {size} lines of {MAX_FILE_LINES}"
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            size = (node.end_lineno or 0) - node.lineno + 1
            if size > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno} {node.name} has {size} lines of {MAX_FUNCTION_LINES}"


def main() -> int:
    """Print the table."""
    lines = lines_by_room()
    for room, count in lines.most_common():
        print(f"{count:>7,}  {room or '(modules)'}")
    rooms = len([room for room in lines if room not in ("", "serving")])
    print(f"{lines.total():>7,}  lines of {MAX_LINES:,}, in {rooms} rooms of {MAX_ROOMS}")
    faults = list(too_long())
    print("\n".join(faults), end="\n" if faults else "")
    return int(bool(faults) or lines.total() > MAX_LINES or rooms > MAX_ROOMS)


if __name__ == "__main__":
    sys.exit(main())
