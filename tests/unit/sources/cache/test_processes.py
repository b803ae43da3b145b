"""Several processes sharing one node's cache, some of them killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayllm.config import BucketSource
from rayllm.core.errors import SourceError
from rayllm.sources import fetch, node_cache
from rayllm.sources.cache import Cache
from tests.servers.faults import FaultProxy
from tests.servers.s3 import S3Server
from tests.unit.sources.downloads import MODEL, OTHER, WEIGHTS, contents

_FETCHER = Path(__file__).with_name("fetcher.py")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes that fetch; they are killed at teardown."""
    started: list[subprocess.Popen[str]] = []

    def run(*args: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
        started.append(
            subprocess.Popen([sys.executable, _FETCHER, *args], stdout=subprocess.PIPE, text=True, env=environment)
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def uri(s3_proxy: FaultProxy, s3: S3Server, place: str) -> str:
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    return f"s3://{place}/m"


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def sent(proxy: FaultProxy) -> int:
    return sum(count for path, count in proxy.bytes_sent.items() if path.endswith(".safetensors"))


def parts(cache_folder: Path) -> int:
    """Number of parts recorded in journals."""
    journals = list(cache_folder.rglob("journal"))
    return sum(line[0].isdigit() for path in journals for line in path.read_text().splitlines()[1:])


def test_download_of_a_killed_process_is_resumed(
    s3_proxy: FaultProxy, uri: str, start: Start, cache_folder: Path
) -> None:
    # One part never arrives.
    s3_proxy.fault("stall", "safetensors", value=300, times=1)
    process = start(uri)
    # The other four parts of the weights, and config.json.
    wait_for(lambda: parts(cache_folder) == 5)
    process.kill()
    process.wait()
    before = sent(s3_proxy)
    assert contents(fetch(BucketSource(bucket_uri=uri), "m").folder) == MODEL
    assert sent(s3_proxy) - before <= 64 * 1024
    assert not list(cache_folder.rglob("*.part"))


def test_two_processes_download_once(s3_proxy: FaultProxy, uri: str, start: Start) -> None:
    processes = [start(uri), start(uri)]
    folders = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(folders) == 1
    assert contents(Path(folders.pop())) == MODEL
    assert sent(s3_proxy) == len(WEIGHTS)


def test_waiting_process_takes_over_from_a_killed_one(
    s3_proxy: FaultProxy, uri: str, start: Start, cache_folder: Path
) -> None:
    s3_proxy.fault("stall", "safetensors", value=300, times=1)
    first = start(uri)
    wait_for(lambda: parts(cache_folder) == 5)
    waiting = start(uri)
    wait_for(lambda: len([seen for seen in s3_proxy.requests if "list-type" in seen.query]) == 2)
    first.kill()
    assert contents(Path(waiting.communicate(timeout=60)[0].strip())) == MODEL


def test_entry_in_use_by_another_process_is_not_evicted(
    s3: S3Server, uri: str, place: str, start: Start, cache_folder: Path
) -> None:
    s3.put(place, {f"n/{name}": content for name, content in {**MODEL, "w.safetensors": OTHER}.items()})
    user = start(uri, "300")
    assert user.stdout
    used = Path(user.stdout.readline().strip())
    node_cache.cache_clear()
    small = Cache(cache_folder / "sources", max_bytes=500_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rayllm.sources.model.node_cache", lambda: small)
        with pytest.raises(SourceError, match=r"needs 306.0 kB, but .* has room for 200.0 kB and nothing unused"):
            fetch(BucketSource(bucket_uri=f"s3://{place}/n"), "m")
        assert contents(used) == MODEL
        user.kill()
        user.wait()
        assert fetch(BucketSource(bucket_uri=f"s3://{place}/n"), "m").folder.is_dir()
    assert not used.exists()
