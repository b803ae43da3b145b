"""The fork server, run for real with a module that imports fast."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import psutil
import pytest

from rayllm.engine.process import fork_server, forking
from rayllm.engine.process.forking import ForkContext

pytestmark = pytest.mark.skipif(not forking.is_supported(), reason="needs pidfd_open")

MODULE = "this"  # prints when it is imported


def imported_and_environment(queue: Queue[Any]) -> None:
    queue.put((MODULE in sys.modules, dict(os.environ), os.getppid(), multiprocessing.parent_process().pid))  # type: ignore[union-attr]


def priorities(queue: Queue[Any]) -> None:
    queue.put((os.getpriority(os.PRIO_PROCESS, 0), session_niceness()))


def session_niceness() -> int | None:
    """The niceness of this process's session; None if the kernel does not divide the CPU among sessions."""
    path = Path("/proc/self/autogroup")
    found = path.read_text().split() if path.exists() else []
    return int(found[-1]) if found else None


def unfreeze(queue: Queue[Any]) -> None:
    gc.unfreeze()
    queue.put(gc.get_freeze_count())


def exit_with(code: int) -> None:
    sys.exit(code)


def sleep() -> None:
    time.sleep(60)


def say(text: str) -> None:
    print(text, flush=True)


def end_servers(folder: Path) -> None:
    for path in folder.glob("*/*.sock"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            child = psutil.Process(fork_server.NUMBER.unpack(client.recv(fork_server.NUMBER.size))[0])
            os.kill(child.ppid(), signal.SIGKILL)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the sockets, whose servers end with the test. Its path must be short."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)
        end_servers(Path(name))


def started(target: Any, *args: Any, modules: tuple[str, ...] = (MODULE,)) -> Any:
    process = ForkContext(modules).Process(target=target, args=args, name="child")
    process.start()
    return process


def facts(modules: tuple[str, ...] = (MODULE,)) -> tuple[bool, dict[str, str], int, int]:
    queue = ForkContext(modules).Queue()
    process = started(imported_and_environment, queue, modules=modules)
    found: tuple[bool, dict[str, str], int, int] = queue.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    process.close()
    queue.close()
    return found


def test_children_have_the_modules_and_the_environment_of_their_parent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLLM_TEST", "1")
    is_imported, environment, server, parent = facts()
    assert is_imported
    assert environment == dict(os.environ)
    assert parent == os.getpid() != server
    monkeypatch.setenv("RAYLLM_TEST", "2")  # read by no import, so the server is the same
    assert facts()[1:3] == (dict(os.environ), server)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert facts()[2] != server


def test_children_never_visit_the_objects_of_the_imports(folder: Path) -> None:
    queue = ForkContext((MODULE,)).Queue()
    process = started(unfreeze, queue)
    # Those of the interpreter alone are more.
    assert queue.get(timeout=60) > 1000
    process.join(60)


def test_children_have_a_lower_priority(folder: Path) -> None:
    queue = ForkContext((MODULE,)).Queue()
    process = started(priorities, queue)
    niceness, of_session = queue.get(timeout=60)
    process.join(60)
    assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + fork_server.NICENESS)
    # Sessions do not inherit it: a new one has 0.
    assert of_session in (None, fork_server.NICENESS)


def test_a_prepared_server_is_that_of_the_environment_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports in this process change the environment while the server imports the same modules."""
    context = ForkContext((MODULE,))
    context.prepare()
    [path] = folder.glob("*/*.sock")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    queue = context.Queue()
    process = context.Process(target=imported_and_environment, args=(queue,))
    process.start()
    is_imported, environment, _, _ = queue.get(timeout=60)
    process.join(60)
    assert is_imported
    assert environment == dict(os.environ)
    assert list(folder.glob("*/*.sock")) == [path]


def test_the_modules_of_all_engines_are_imported_without_a_limit_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's request classes take the limit from the environment that they are imported in."""
    environments = []
    for limit in ("4", "20"):
        monkeypatch.setenv("VLLM_MAX_STOP_STRINGS", limit)
        environments.append(forking._import_environment())
    assert environments[0] == environments[1]
    assert int(environments[0]["VLLM_MAX_STOP_STRINGS"]) > 10_000


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code(folder: Path, code: int) -> None:
    process = started(exit_with, code)
    assert multiprocessing.connection.wait([process.sentinel], 60)
    assert process.exitcode == code


def test_signals(folder: Path) -> None:
    process = started(sleep)
    assert process.is_alive()
    assert process.exitcode is None
    process.terminate()
    process.join(60)
    assert process.exitcode == -signal.SIGTERM


def test_output_is_the_parents(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    process = started(say, "hello")
    process.join(60)
    assert capfd.readouterr().out == "hello\n"


def test_an_end_of_the_server_ends_no_child(folder: Path) -> None:
    process = started(sleep)
    end_servers(folder)
    assert not multiprocessing.connection.wait([process.sentinel], 0.5)
    process.kill()
    process.join(60)
    assert process.exitcode == 255, "nobody knows the code"
    assert facts()[0], "the next child has another server"


def test_clients_that_start_at_once_share_a_server(folder: Path) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(facts()[2])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_process_is_spawned_if_the_server_fails(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, _, parent, _ = facts(("no_such_module",))
    assert parent == os.getpid()
    assert "The fork server failed" in caplog.text


def test_a_process_is_spawned_if_the_folder_is_not_ours(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / f"rayllm-{os.getuid()}").write_text("")
    assert facts()[2] == os.getpid()
    assert "The fork server failed" in caplog.text


def test_the_server_ends_when_idle(folder: Path) -> None:
    path = folder / "server.sock"
    subprocess.run([sys.executable, "-m", fork_server.__name__, str(path), "0.1", "json"], check=True)
    deadline = time.monotonic() + 60
    while path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_context_says_how_long_its_server_is_kept(folder: Path) -> None:
    ForkContext(["json"], idle_s=0.1).prepare()
    deadline = time.monotonic() + 30
    while list(folder.glob("*/*.sock")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


PARENT = """
import sys, time
from rayllm.engine.process import parent_watch
from rayllm.engine.process.forking import ForkContext
from tests.unit.engine.process.test_forking import follow_and_sleep
if __name__ == "__main__":
    parent_watch.mark_as_parent()
    process = ForkContext(["json"]).Process(target=follow_and_sleep)
    process.start()
    print(process.pid, flush=True)
    time.sleep(60)
"""


def follow_and_sleep() -> None:
    from rayllm.engine.process.parent_watch import follow_parent

    follow_parent()
    sleep()


def test_a_child_ends_with_its_parent(folder: Path) -> None:
    script = folder / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=60)
    assert not alive
