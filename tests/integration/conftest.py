"""One real cluster and one real application for the whole session: two models on the bundled demo weights."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from openai import OpenAI
from ray import serve

from rayllm import build_app
from tests.integration import groups
from tests.integration.service import APP, BACKENDS, DEMO, Service, make_adapters, plain_model
from tests.integration.workers.server import forked_workers
from tests.servers.process import free_port

# Modules that use the session's application.
_WITH_SERVICE = pytest.StashKey[set[Path]]()
_deployed: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """Have what shares an application or a cluster run in one process, where there are several."""
    if config.getoption("dist", "no") == "loadgroup" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(groups.Controller())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run modules that need no cluster first, then those of the application, and last those with their own.

    Without a cluster beside theirs, commands find the one that a test has started. The application is one group, the
    longest; every other module is one, so that the processes end together.
    """

    def needs(item: pytest.Item, *names: str) -> bool:
        # Fixtures of the same names elsewhere are others.
        is_here = Path(__file__).parent in item.path.parents
        return is_here and not set(names).isdisjoint(getattr(item, "fixturenames", ()))

    for item in items:
        if Path(__file__).parent in item.path.parents:
            # Ray leaves sockets and pipes of its own processes behind: list them, but fail unit tests only.
            item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning"))

    with_cluster = {item.path for item in items if needs(item, "cluster")}
    with_service = {item.path for item in items if needs(item, "service")}

    def rank(item: pytest.Item) -> int:
        if item.path in with_service:
            return 2 if needs(item, "surface", "kinds") else 1
        return 3 if item.path in with_cluster else 0

    items.sort(key=rank)
    grouped = {item.nodeid: "application" if rank(item) in (1, 2) else item.path.name for item in items}
    groups.write_groups(config, grouped)
    config.stash[_WITH_SERVICE] = with_service


@pytest.fixture(scope="session", autouse=True)
def workers(environment: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Ray fork the workers of clusters that tests start, so that each of them need not import vLLM anew.

    Clusters and commands know nothing of those of other test processes on this machine. There is no hub but the one
    that some tests start.
    """
    environment.setenv("HF_HUB_OFFLINE", "1")
    # Seconds between two measurements of nodes by their agents, of which no test reads anything.
    environment.setenv("REPORTER_UPDATE_INTERVAL_MS", "60000")
    # Ray's log monitor lists all files of logs ten times a second where there are fewer.
    environment.setenv("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0")
    # Not removed, since it has the logs. Its path is short: those of Ray's sockets have at most 107 bytes.
    environment.setenv("RAY_TMPDIR", tempfile.mkdtemp(prefix="rayllm-tests-"))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        # What tests fetch is gone with them.
        environment.setenv("RAYLLM_CACHE_DIR", cache)
        with forked_workers(Path(folder)):
            yield


@pytest.fixture(scope="module", autouse=True)
def nothing_beside(request: pytest.FixtureRequest) -> None:
    """Delete the session's applications before a module that uses none of them: their engines cost CPU time."""
    if _deployed and request.path not in request.config.stash[_WITH_SERVICE]:
        while _deployed:
            serve.delete(_deployed.pop())


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A local Ray cluster with logical GPUs: placement is real, the devices are not."""
    ray.init(
        num_cpus=16,
        num_gpus=8,
        resources={"accelerator_type:A10G": 1},
        include_dashboard=False,
        log_to_driver=False,
        namespace="serve",
    )
    # Nobody reads what it would collect from hundreds of processes.
    ray._private.worker._global_node.kill_log_monitor()
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="session")
def proxy_url(cluster: None) -> str:
    """The address of Ray Serve's proxy, behind which all applications are."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def service(proxy_url: str, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """The application, ready."""
    adapters = tmp_path_factory.mktemp("adapters")
    make_adapters(adapters)
    backends = tmp_path_factory.mktemp("backends")
    shutil.copytree(BACKENDS / "by-default", backends / "by-default")
    own_port = free_port()
    # Applications with a route prefix are behind Serve's proxy; this one's routers listen themselves as well.
    args = {
        "llm_configs": [str(DEMO), plain_model(adapters, backends)],
        "router": {
            "listen": f"127.0.0.1:{own_port}",
            "model_aliases": {"gpt-demo": "rayllm-demo"},
            "max_ongoing_requests": 4_000,
            "cors": {"allow_origins": ["*"]},
            "allowed_hosts": ["rayllm.example"],
            "trusted_proxies": ["127.0.0.9"],
            "batches": {"storage": str(tmp_path_factory.mktemp("batches")), "max_file_bytes": 10_000_000},
        },
    }
    serve.run(build_app(args), name=APP, route_prefix="/")
    _deployed.append(APP)
    return Service(f"http://127.0.0.1:{own_port}", proxy_url, adapters)


@pytest.fixture(scope="session")
def surface_configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """A model of every kind, by its id."""
    from tests.integration.surface import surface_models  # imports torch

    made = surface_models(tmp_path_factory.mktemp("surface"))
    return {config["model_loading_config"]["model_id"]: config for config in made}


@pytest.fixture(scope="session")
def surface(
    service: Service, surface_configs: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Service:
    """A second application with a model of every kind, ready; it stands behind a route prefix.

    Its batches have engines of their own, and it refuses hosted tools.
    """
    from tests.integration.surface import PREFIX

    batches = {"storage": str(tmp_path_factory.mktemp("batches")), "execution": "engines"}
    router = {"batches": batches, "hosted_tools": "refuse"}
    args = {"llm_configs": list(surface_configs.values()), "router": router}
    serve.run(build_app(args), name="surface", route_prefix=PREFIX)
    _deployed.append("surface")
    return replace(service, url=service.proxy_url + PREFIX, proxy_url=service.proxy_url + PREFIX)


@pytest.fixture(scope="session")
def kinds(surface: Service) -> Iterator[httpx.Client]:
    """A plain HTTP client on the application with a model of every kind."""
    with surface.client() as client:
        yield client


@pytest.fixture(scope="session")
def openai(service: Service) -> OpenAI:
    """OpenAI's client on the application."""
    return service.openai()


@pytest.fixture(scope="session")
def http(service: Service) -> Iterator[httpx.Client]:
    """A plain HTTP client on the application."""
    with service.client() as client:
        yield client
