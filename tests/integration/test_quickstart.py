"""README, quickstart and tutorials as a newcomer follows them: every block of code is run, in order, in a clone."""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
import yaml

from rayllm.config.load import load_app, model_from
from scripts.documentation import blocks
from tests.integration.service import ROOT

pytestmark = pytest.mark.timeout(900)
SERVE = "make run"
# What a newcomer types where a command asks, the last again and again; "" is Enter, None Ctrl-D.
TYPED: dict[str, list[str | None]] = {
    "Model: a hub id, .* a folder: ": ["rayllm-demo-2"],
    r"Are its weights in .* \[y/N\]: ": ["y"],
    "Their source: .* a folder: ": ["models/rayllm-demo/weights"],
    r"GPU type: .* \[none\]: ": [""],
    r"Tensor parallelism: .* \[1\]: ": [""],
    r"Serve LoRA adapters\? \[y/N\]: ": ["n"],
    r"Longest context: .* \[2048\]: ": ["1024"],
    r"Configure autoscaling\? \[y/N\]: ": [""],
    "> ": ["What is the capital of Italy?", None],
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as a newcomer has it, with what `make setup` installs."""
    folder = tmp_path_factory.mktemp("newcomer") / "rayllm"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


@pytest.fixture(scope="module")
def served(clone: Path) -> Iterator[Path]:
    """The clone, with the first command running."""
    log = clone / "run.log"
    with log.open("w") as output:
        running = subprocess.Popen(
            ["sh", "-c", SERVE],
            cwd=clone,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(running, log)
        yield clone
    finally:
        os.killpg(running.pid, signal.SIGINT)
        try:
            running.wait(timeout=90)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    said = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text().partition("Stopping.\n")[2])
    # Make may say that it was interrupted.
    assert [line for line in said.splitlines() if line and not line.startswith("make")] == []


def wait_until_ready(running: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if "Try:\n  curl http://127.0.0.1:8000/v1" in log.read_text():
            return
        assert running.poll() is None, log.read_text()[-4000:]
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


def run(language: str, code: str, folder: Path) -> str:
    """Run a block to its end; what it printed."""
    if language == "sh":
        return in_a_terminal(code, folder)
    done = subprocess.run(
        [".venv/bin/python", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def in_a_terminal(code: str, folder: Path) -> str:
    """Run commands in a terminal, and answer what they ask; what was seen there."""
    shell = pexpect.spawn(
        "bash",
        ["-euo", "pipefail", "-c", code],
        cwd=str(folder),
        env={**os.environ, "TERM": "dumb"},
        encoding="utf-8",
        timeout=300,
        dimensions=(50, 400),
    )
    seen, asked = io.StringIO(), dict.fromkeys(TYPED, 0)
    shell.logfile_read = seen
    while (found := shell.expect([*TYPED, pexpect.EOF])) < len(TYPED):
        question = list(TYPED)[found]
        answers = TYPED[question]
        answer = answers[min(asked[question], len(answers) - 1)]
        asked[question] += 1
        if answer is None:
            shell.sendeof()
        else:
            shell.sendline(answer)
    # A command may close its output before it ends, and closing the terminal would end it.
    shell.wait()
    shell.close()
    assert shell.exitstatus == 0, f"{code}\n{seen.getvalue()}"
    return seen.getvalue()


def check(page: str, folder: Path) -> str:
    """Run a page's commands, write its blocks with a file's name, and load other configurations; what was printed."""
    printed = []
    for language, code, _, title in blocks((ROOT / page).read_text()):
        if title:
            (folder / title).write_text(code)
        elif language in ("sh", "python") and code.partition("#")[0].strip() != SERVE:
            printed.append(run(language, code, folder))
        elif language == "yaml":
            loaded = yaml.safe_load(code)
            if "applications" in loaded:
                assert load_app(loaded["applications"][0]["args"], folder).models
            elif "model_loading_config" in loaded:
                model_from(loaded, page, (folder,))
    return "\n".join(printed)


def test_the_picture_of_the_readme_shows_what_is_printed(served: Path) -> None:
    drawn = re.findall(r"<text [^>]*>(.*)</text>", (ROOT / "docs" / "images" / "make-run.svg").read_text())
    shown = "\n".join(map(html.unescape, drawn))
    assert shown.startswith(f"$ {SERVE}\n")
    # Which phases are printed before depends on how long they take.
    assert "Ready: " + shown.partition("Ready: ")[2] in (served / "run.log").read_text()


def test_the_tutorial_on_batches(served: Path) -> None:
    # On two cores, a batch needs the one that a second model would take.
    printed = check("docs/tutorials/batch.md", served)
    assert printed.count("The capital of Japan is Tokyo.") == 2
    assert "Kenya The capital of Kenya is Nairobi." in printed


def test_the_tutorial_on_adapters(served: Path) -> None:
    printed = check("docs/tutorials/adapters.md", served)
    assert "rayllm-demo: The capital of Peru is Lima." in printed
    assert printed.count("Arrr, the capital of Peru be Lima, matey!") == 3


def test_the_tutorial_on_tools(served: Path) -> None:
    printed = check("docs/tutorials/tools.md", served)
    assert "The current temperature in Paris, France is 22.0 degrees Celsius." in printed


def test_the_readme(served: Path) -> None:
    printed = check("README.md", served)
    assert "Arrr, the capital of Italy be Rome, matey!" in printed
    assert "    rayllm-demo: untouched" in printed
    assert "  + rayllm-demo-2: added" in printed
    assert "A100-80G" in printed


def test_the_quickstart(served: Path) -> None:
    printed = check("docs/quickstart.md", served)
    assert printed.count("The capital of France is Paris.") == 3
    assert "The capital of Italy is Rome." in printed
    assert "The capital of Japan is Tokyo." in printed
    assert "rayllm-demo-2" in printed
    assert "kind: RayService" in (served / "mine" / "rayservice.yaml").read_text()


def test_the_tutorial_on_a_model_of_your_own(served: Path) -> None:
    # On two cores, only one other model fits.
    run("sh", ".venv/bin/rayllm apply serve_configs/demo.yaml", served)
    printed = check("docs/tutorials/own-model.md", served)
    assert "<|im_start|>user\r\nWhat is the capital of Japan?<|im_end|>" in printed
    assert "The capital of Japan is Tokyo." in printed
    assert "capitals: rolled (generation_config" in printed
