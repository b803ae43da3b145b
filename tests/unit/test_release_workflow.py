"""The release's workflow, as far as it can be checked without a release."""

from __future__ import annotations

import http.server
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / ".github" / "workflows" / "release.yaml").read_text()
# `on` is a boolean in YAML 1.1.
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, Any] = WORKFLOW["jobs"]


def commands(job: str) -> str:
    return "\n".join(step.get("run", "") for step in JOBS[job]["steps"])


def actions(job: str) -> list[str]:
    return [step["uses"].partition("@")[0] for step in JOBS[job]["steps"] if "uses" in step]


def before(job: str) -> set[str]:
    """All jobs that a job waits for."""
    needs = JOBS[job].get("needs", [])
    needs = {needs} if isinstance(needs, str) else set(needs)
    return needs.union(*map(before, needs))


def test_only_tags_release() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_everything_is_tried_before_it_is_published() -> None:
    assert before("publish") == {"build", "installed", "images"}
    assert "twine check --strict" in commands("build")
    assert "scripts/smoke.sh" in commands("installed")
    names = [step.get("id") or step.get("run", "") for step in JOBS["images"]["steps"]]
    tried = next(index for index, name in enumerate(names) if "scripts/smoke.sh" in name)
    assert tried < names.index("push")
    publishing = {"pypa/gh-action-pypi-publish"}
    assert [job for job in JOBS if publishing & set(actions(job))] == ["publish"]


def test_what_is_published_has_provenance_and_an_sbom() -> None:
    for job in ("build", "images"):
        assert "actions/attest-build-provenance" in actions(job)
    assert "actions/attest-sbom" in actions("installed")
    [push] = [step["with"] for step in JOBS["images"]["steps"] if step.get("id") == "push"]
    assert (push["provenance"], push["sbom"], push["push"]) == ("mode=max", True, True)
    for name, job in JOBS.items():
        if any(action.startswith("actions/attest-") for action in actions(name)):
            assert job["permissions"]["id-token"] == job["permissions"]["attestations"] == "write"


def test_no_secret_is_stored() -> None:
    assert set(re.findall(r"secrets\.(\w+)", TEXT)) <= {"GITHUB_TOKEN"}
    assert JOBS["publish"]["environment"] == "release"


def test_it_names_what_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    engines = {entry["engine"] for entry in JOBS["images"]["strategy"]["matrix"]["include"]}
    assert engines <= project["optional-dependencies"].keys()
    files = set(re.findall(r"\b(?:scripts|requirements|deploy)/[\w.-]+", TEXT))
    assert {"scripts/smoke.sh", "deploy/Dockerfile"} <= files
    assert [name for name in files if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("job", JOBS)
def test_a_shell_can_read_its_commands(job: str) -> None:
    done = subprocess.run(["bash", "-n", "-c", commands(job)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Wrong(http.server.BaseHTTPRequestHandler):
    """A service that is ready, and does not know capitals."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "7")
        self.end_headers()
        self.wfile.write(b"London.")

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def wrong() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Wrong) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_wrong_answer_fails_the_release(wrong: str) -> None:
    command = [str(ROOT / "scripts" / "smoke.sh"), wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"smoke: {wrong} answered: London.\n"


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda file: file.name)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    used = re.findall(r"uses: (.*)", file.read_text())
    assert used
    # The version stands beside, for people.
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
