"""Run the tests that need an engine with several series of vLLM, and write what came out to docs/versions.md.

`python scripts/check_versions.py [SERIES …]`, by default all with a CPU build. Each gets an environment of its own,
`.venv-vllm-SERIES`, of some gigabytes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from xml.etree import ElementTree

from generate import ROOT, with_table

from rayllm.config.vllm_versions import CUDA_ONLY, SERIES

PAGE = ROOT / "docs" / "versions.md"
# The modules of the real stack whose outcome depends on vLLM's version.
MODULES = [
    f"tests/integration/test_{name}.py"
    for name in (
        "demo",
        "openai_api",
        "compatibility",
        "client",
        "tools",
        "structured_output",
        "guided_decoding",
        "templates",
        "pooling",
        "media",
        "adapters",
        "single",
        "batch",
        "corpus",
        "metrics",
        "explain",
        "continuation",
    )
]
VERSIONS = """
import json, platform
from importlib.metadata import version
import torch
from rayllm.config.vllm_versions import installed_version
python = platform.python_version()
print(json.dumps([str(installed_version()), version("ray"), torch.__version__, version("transformers"), python]))
"""


def main(series: list[str]) -> int:
    faults = 0
    for each in series:
        environment = ROOT / f".venv-vllm-{each}"
        run(["scripts/setup.sh"], VENV=str(environment), VLLM=each)
        python = str(environment / "bin" / "python")
        run([python, "scripts/vllm_names.py", "--check"])
        passed = failed = skipped = 0
        for tests in (["tests/vllm"], MODULES):
            outcome = run_tests(python, tests)
            passed, failed, skipped = passed + outcome[0], failed + outcome[1], skipped + outcome[2]
        faults += failed
        versions = json.loads(subprocess.check_output([python, "-c", VERSIONS], cwd=ROOT))
        record([*versions, datetime.now(UTC).date().isoformat(), str(passed), str(failed), str(skipped)])
    return 1 if faults else 0


def run(command: list[str], **variables: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **variables})


def run_tests(python: str, tests: list[str]) -> tuple[int, int, int]:
    """Run tests; returns how many passed, failed and were skipped."""
    report = ROOT / ".pytest_cache" / "versions.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    subprocess.run([python, "-m", "pytest", "--quiet", f"--junit-xml={report}", *tests], cwd=ROOT)
    [suite] = ElementTree.parse(report).getroot()
    total, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return total - failed - skipped, failed, skipped


def record(cells: list[str]) -> None:
    """Write a row to the page's table, in place of the one of the same series."""
    page = PAGE.read_text()
    rows = re.findall(r"^\| (\d+\.\d+)(\..*) \|$", page, re.MULTILINE)
    table = {series: series + rest for series, rest in rows}
    table[".".join(cells[0].split(".")[:2])] = " | ".join(cells)
    titles = ("vLLM", "Ray", "PyTorch", "transformers", "Python", "Run on", "Passed", "Failed", "Skipped")
    heading = f"| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|\n"
    lines = [f"| {table[series]} |\n" for series in sorted(table, key=SERIES.index)]
    PAGE.write_text(with_table(PAGE, "versions", heading + "".join(lines)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [each for each in SERIES if each not in CUDA_ONLY]))
