"""Real stores of this machine, one of each for the session, and a cache a test; made where a test asks for one."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.faults import FaultProxy
    from tests.servers.gcs import GcsServer
    from tests.servers.hub import HubServer
    from tests.servers.s3 import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    from tests.servers.s3 import S3Server

    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    from tests.servers.gcs import GcsServer

    with GcsServer() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 server that this process's AWS variables lead to."""
    from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY

    for name, value in {
        "AWS_ENDPOINT_URL_S3": s3_server.url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def gcs(gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """A Cloud Storage server that this process's variables lead to."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
    return gcs_server


@pytest.fixture
def s3_proxy(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the S3 server, that this process's AWS variables lead to."""
    from tests.servers.faults import FaultProxy

    with FaultProxy(s3.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        yield proxy


@pytest.fixture
def gcs_proxy(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the Cloud Storage server, that this process's variables lead to."""
    from tests.servers.faults import FaultProxy

    with FaultProxy(gcs.url) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        yield proxy


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub that this process's variables lead to, without a token, and an empty cache of the hub's client."""
    from huggingface_hub import constants

    from tests.servers.hub import HubServer

    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # The client reads these once, when it is imported.
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        yield server


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """The name of a bucket of this test's own."""
    return f"bucket-{abs(hash(request.node.nodeid)) % 10**10}"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts, so that small files have several, and short waits between tries."""
    from rayllm.sources.transfer import download, ranges

    monkeypatch.setattr(download, "PART_SIZE", 64 * 1024)
    monkeypatch.setattr(ranges, "_MAX_WAIT_S", 0.2)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test's own, and few tries so that a test of failing is quick."""
    from rayllm.core.settings import settings
    from rayllm.sources import node_cache

    folder = tmp_path / "cache"
    monkeypatch.setenv("RAYLLM_CACHE_DIR", str(folder))
    monkeypatch.setenv("RAYLLM_DOWNLOAD_TRIES", "3")
    settings.cache_clear()
    node_cache.cache_clear()
    yield folder
    settings.cache_clear()
    node_cache.cache_clear()


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """Lets no file of this process grow beyond a megabyte, from the call on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
