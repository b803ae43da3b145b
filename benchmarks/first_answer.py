"""How long a newcomer waits: the set-up in a fresh clone, and from `make run` to the first answer.

python -m benchmarks.first_answer           print the table
python -m benchmarks.first_answer --write   also put it into docs/performance.md

The packages come from where pip finds them here, whose speed is in the figures. `make run` listens on its usual port,
which must be free.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from benchmarks.compare import publish, read_options

ROOT = Path(__file__).parent.parent
URL = "http://127.0.0.1:8000/v1/chat/completions"
QUESTION = {"role": "user", "content": "What is the capital of France?"}
LONGEST_S = 600.0


def main() -> None:
    """Measure, and print or publish the table."""
    read_options(__doc__)
    rows = ["| | seconds |", "|---|--:|"]
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "rayllm"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        began = time.monotonic()
        subprocess.run(["make", "setup"], cwd=clone, check=True)
        rows.append(f"| `make setup` in a fresh clone | {time.monotonic() - began:.0f} |")
        for which in ("first", "second"):
            rows.append(f"| from the {which} `make run` to its first answer | {_first_answer(clone):.0f} |")
    publish("first-answer", "\n".join(rows))


def _first_answer(clone: Path) -> float:
    """Seconds from the command to an answer."""
    if _answer() is not None:
        raise SystemExit("another service answers on port 8000")
    began = time.monotonic()
    process = subprocess.Popen(["make", "run"], cwd=clone, start_new_session=True)
    try:
        while (answer := _answer()) is None:
            if process.poll() is not None or time.monotonic() - began > LONGEST_S:
                raise SystemExit("`make run` does not serve")
            time.sleep(0.2)
        seconds = time.monotonic() - began
        if "Paris" not in answer:
            raise SystemExit(f"the demo said: {answer}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(120)
    return seconds


def _answer() -> str | None:
    body = json.dumps({"model": "rayllm-demo", "messages": [QUESTION], "temperature": 0}).encode()
    request = urllib.request.Request(URL, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer: str = json.load(reply)["choices"][0]["message"]["content"]
    except OSError:
        return None
    return answer


if __name__ == "__main__":
    main()
