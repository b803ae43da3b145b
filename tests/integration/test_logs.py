"""Log files of the running service are complete, and cost its processes no memory."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import ray

from tests.integration.service import Service
from tests.integration.test_leaving import within
from tests.integration.test_processes import process

WARM_UP, REQUESTS = 1_000, 5_000
# Before, each request left 1,500 to 2,000 bytes behind.
MAX_BYTES_A_REQUEST = 700


def refused(http: httpx.Client, count: int, name: str) -> None:
    """Ask for what is not there: the router's own work, with a log line each."""
    for number in range(count):
        reply = http.get(f"/v1/models/{name}", headers={"x-request-id": f"{name}-{number}"})
        assert reply.status_code == 404


def routers_log() -> str:
    """What the router has written, as Ray Serve keeps it."""
    folder = Path(ray._private.worker._global_node.get_logs_dir_path()) / "serve"  # type: ignore[union-attr]
    return "".join(file.read_text() for file in sorted(folder.glob("replica_rayllm_Router_*")))


def test_log_files_are_complete_and_routers_stay_as_large_as_they_are(service: Service, http: httpx.Client) -> None:
    router = process("ray::ServeReplica:rayllm:Router")
    refused(http, WARM_UP, "warm-up")
    before = router.memory_info().rss
    refused(http, REQUESTS, "counted")
    grown = router.memory_info().rss - before
    assert grown < MAX_BYTES_A_REQUEST * REQUESTS
    # A line is written when its reply has left.
    assert within(60, lambda: f" counted-{REQUESTS - 1} 127.0.0.1 GET" in routers_log())
    lines = re.findall(r" counted-(\d+) 127\.0\.0\.1 GET /v1/models/counted 404 ", routers_log())
    assert [int(number) for number in lines] == list(range(REQUESTS))


def test_only_a_proxy_that_the_configuration_names_says_who_the_client_is(service: Service) -> None:
    for source in ("127.0.0.9", "127.0.0.8"):
        said = {"x-forwarded-for": "203.0.113.7", "x-request-id": f"by-{source}"}
        with httpx.Client(transport=httpx.HTTPTransport(local_address=source), base_url=service.url) as http:
            assert http.get("/v1/models", headers=said).status_code == 200
    for line in ("by-127.0.0.9 203.0.113.7 GET", "by-127.0.0.8 127.0.0.8 GET"):
        assert within(60, lambda line=line: f" {line} /v1/models 200 " in routers_log())  # type: ignore[misc]
