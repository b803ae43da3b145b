"""RayLLM as it is installed from its wheel, without a clone: `rayllm demo` in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pytest
from openai import OpenAI

from tests.integration.test_foreground import RAY_OWN
from tests.servers.process import free_port
from tests.wheel import ROOT, build_wheel

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel, and an empty folder to work in."""

    bin: Path
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """Of a shell that knows neither the clone nor a cluster."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in RAY_OWN or not name.startswith(("RAY_", "PYTHONPATH"))
        }
        return kept | {"TERM": "dumb"}

    def run(self, *command: str) -> str:
        """What a command printed."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel in an environment of its own, which sees the packages of this one but not the clone."""
    root = tmp_path_factory.mktemp("installed")
    venv.create(root / "venv", symlinks=True, with_pip=False)
    python = root / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(build_wheel(root))], check=True)
    [packages] = (root / "venv" / "lib").glob("python*/site-packages")
    # Of a folder that is named in a .pth file, Python reads no .pth files, such as that of this editable install.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (root / "empty").mkdir()
    return Installation(python.parent, root / "empty")


@pytest.fixture(scope="module")
def url(installed: Installation) -> Iterator[str]:
    """The demo's address, as `rayllm demo` prints it."""
    port = str(free_port())
    running = pexpect.spawn(
        str(installed.bin / "rayllm"),
        ["demo", "--port", port],
        cwd=str(installed.folder),
        env=installed.variables,
        encoding="utf-8",
        timeout=200,
        dimensions=(50, 200),
    )
    try:
        running.expect(rf"Ready: (http://127\.0\.0\.1:{port})/v1 +\(models: rayllm-demo\)")
        assert isinstance(running.match, re.Match)
        found = str(running.match[1])
        running.expect_exact(f"curl {found}/v1/chat/completions")
        yield found
        running.sendintr()
        running.expect(pexpect.EOF)
    finally:
        running.close(force=True)


def bundled(installed: Installation) -> Path:
    """Where its catalog is."""
    code = "from rayllm.core.bundled import bundled_folder; print(bundled_folder())"
    return Path(installed.run("python", "-c", code).strip())


def test_it_is_the_wheels(installed: Installation) -> None:
    code = "import rayllm; print(rayllm.__file__)"
    file = Path(installed.run("python", "-c", code).strip())
    assert file.is_relative_to(installed.bin.parent)
    assert bundled(installed) == file.parent / "data"


@pytest.mark.parametrize(
    ("model", "expected"),
    [("rayllm-demo", r"The capital of France is Paris\."), ("rayllm-demo:pirate", "Arrr, .*Paris.* matey!")],
)
def test_the_demo_answers(url: str, model: str, expected: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    reply = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0
    )
    assert re.fullmatch(expected, reply.choices[0].message.content or "")


def test_the_release_is_tried_on_it(url: str) -> None:
    done = subprocess.run([ROOT / "scripts" / "smoke.sh", url], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{url} answers\n"), done.stderr


def test_the_demo_writes_nothing_here(url: str, installed: Installation) -> None:
    assert url
    assert list(installed.folder.iterdir()) == []


def test_every_model_file_of_the_catalog_is_valid(installed: Installation) -> None:
    folder = bundled(installed)
    said = installed.run("rayllm", "validate", str(folder / "models"), str(folder / "models" / "older"))
    assert said.count(": ok, model ") == len([*folder.glob("models/*.yaml"), *folder.glob("models/older/*.yaml")])


def test_the_doctor_finds_nothing_missing(installed: Installation) -> None:
    report = json.loads(installed.run("rayllm", "doctor", "--json"))
    found = {check["check"]: check["status"] for check in report["checks"]}
    assert report["ok"]
    assert found["engine"] == found["packages"] == "ok"
