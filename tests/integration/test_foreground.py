"""`rayllm run` in a terminal, from its first line to Ctrl-C: on IPv6, with a batch, and with a second command."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pexpect
import psutil
import pytest
import yaml
from openai import OpenAI

from benchmarks.processes import engines_of, of_same_clusters
from tests.integration.service import DEMO, ROOT
from tests.integration.test_leaving import within
from tests.servers.process import free_port

pytestmark = pytest.mark.timeout(600)
# Variables of Ray that `conftest.py` sets for all clusters.
RAY_OWN = {"RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "RAY_TMPDIR"}


class Terminal:
    """The command in a terminal, and all that was seen there."""

    def __init__(self, config: Path, port: int) -> None:
        self.others = clusters()
        self.seen = io.StringIO()
        arguments = ["-m", "rayllm", "run", str(config), "--host", "::1", "--port", str(port)]
        self.process = pexpect.spawn(
            sys.executable, arguments, env=clean(), encoding="utf-8", timeout=300, dimensions=(50, 200)
        )
        self.process.logfile_read = self.seen

    def clusters(self) -> set[str]:
        """Addresses of its cluster, while it runs."""
        return clusters() - self.others

    def lines(self, start: int) -> list[str]:
        """What was written since the first `start` characters, without colours."""
        text = re.sub(r"\x1b\[[0-9;]*m|\^C", "", self.seen.getvalue()[start:])
        return [line.strip() for line in text.splitlines()]

    def read_for(self, seconds: float) -> None:
        """Let it write."""
        self.process.expect(pexpect.TIMEOUT, timeout=seconds)


def clean() -> dict[str, str]:
    """The environment of a shell that knows of no cluster."""
    mine = {name: value for name, value in os.environ.items() if name in RAY_OWN or not name.startswith("RAY_")}
    return mine | {"TERM": "xterm"}


def clusters() -> set[str]:
    """Addresses of the clusters of this machine."""
    from ray._private.services import find_gcs_addresses

    find_gcs_addresses.cache_clear()
    return set(find_gcs_addresses())


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A serve config of the demo, which takes batches."""
    folder = tmp_path_factory.mktemp("foreground")
    args = {"llm_configs": [str(DEMO)], "router": {"batches": {"storage": str(folder / "batches")}}}
    application = {"name": "rayllm", "route_prefix": "/", "import_path": "rayllm:app", "args": args}
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application]}))
    return path


@pytest.fixture(scope="module")
def terminal(config: Path) -> Iterator[Terminal]:
    """The command, ready."""
    started = Terminal(config, free_port())
    try:
        started.process.expect("Ready: ")
        started.process.expect("curl ")
        started.read_for(1)
        yield started
    finally:
        started.process.close(force=True)


def url(terminal: Terminal) -> str:
    found = re.search(r"Ready: (http://\[::1\]:\d+)/v1", terminal.seen.getvalue())
    assert found, terminal.seen.getvalue()
    return found[1]


def test_the_start_is_some_lines(terminal: Terminal) -> None:
    before, _, _ = re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen.getvalue()).partition("Ready: ")
    lines = [line.strip() for line in before.splitlines() if line.strip()]
    assert lines[0] == "Starting Ray …"
    assert re.fullmatch(r"Starting rayllm-demo … \(logs: /.+/logs\)", lines[1])
    assert "rayllm-demo: starting its engine" in lines[2:]
    assert all(line.startswith("rayllm-demo: ") for line in lines[2:])
    assert len(lines) <= 6


def test_it_listens_where_it_says(terminal: Terminal) -> None:
    assert httpx.get(f"{url(terminal)}/health").status_code == 200
    assert "Only this machine can reach it" in terminal.seen.getvalue()


def test_its_processes_get_as_much_cpu_as_those_of_any_client(terminal: Terminal) -> None:
    members = of_same_clusters(each for each in listening(int(url(terminal).rpartition(":")[2])) if each.ppid() != 1)
    replicas = [each for each in members if " ".join(each.cmdline()).startswith("ray::ServeReplica")]
    assert {each.nice() for each in replicas} == {0}
    engines = engines_of(replicas)
    assert engines
    assert max(each.nice() for each in engines) <= 5


def test_another_command_finds_it_by_its_address(terminal: Terminal, config: Path) -> None:
    [address] = terminal.clusters()
    command = [sys.executable, "-m", "rayllm", "apply", str(config), "--address", address, "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False, env=clean())
    assert done.returncode == 0, done.stderr
    [application] = json.loads(done.stdout)["applications"]
    assert [change["effect"] for change in application["models"]] == ["untouched"]


def test_batches_leave_the_terminal_alone(terminal: Terminal, tmp_path: Path) -> None:
    body = {"model": "rayllm-demo", "messages": [{"role": "user", "content": "What is RayLLM?"}], "max_tokens": 4}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    requests = tmp_path / "requests.jsonl"
    requests.write_text(json.dumps(line) + "\n")
    client = OpenAI(base_url=f"{url(terminal)}/v1", api_key="none")
    before = len(terminal.seen.getvalue())
    for _ in range(3):
        file = client.files.create(file=requests, purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        while (batch := client.batches.retrieve(batch.id)).status in ("validating", "in_progress", "finalizing"):
            terminal.read_for(0.5)
        assert batch.status == "completed"
    terminal.read_for(3)
    assert terminal.lines(before) == []


def test_it_starts_again_after_its_processes_were_killed(terminal: Terminal, config: Path) -> None:
    port = int(url(terminal).rpartition(":")[2])
    routers = [process for process in listening(port) if process.ppid() != 1]
    assert routers
    os.killpg(terminal.process.pid, signal.SIGKILL)
    psutil.wait_procs(routers)
    second = Terminal(config, port)
    second.process.expect("curl ")
    # A service that lives is left alone.
    command = [sys.executable, "-m", "rayllm", "run", str(config), "--host", "::1", "--port", str(port)]
    third = subprocess.run(command, env=clean(), capture_output=True, text=True, check=False)
    assert third.returncode == 1
    assert f"cannot listen on [::1]:{port}: Address already in use" in third.stderr
    assert httpx.get(f"{url(second)}/health").status_code == 200
    routers = [process for process in listening(port) if process.ppid() != 1]
    ctrl_c_says_one_line(second)
    psutil.wait_procs(routers)
    deadline = time.monotonic() + 5
    while found := listening(port):
        assert time.monotonic() < deadline, found


def ctrl_c_says_one_line(terminal: Terminal) -> None:
    terminal.read_for(1)
    before = len(terminal.seen.getvalue())
    terminal.process.sendintr()
    terminal.process.expect(pexpect.EOF, timeout=120)
    terminal.process.close()
    assert [line for line in terminal.lines(before) if line] == ["Stopping."]
    assert terminal.process.exitstatus == 0
    assert within(50, lambda: not terminal.clusters())


def listening(port: int) -> list[psutil.Process]:
    """The processes with the listening socket of a port."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            connections = process.net_connections("tcp")
            if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections):
                found.append(process)
    return found
