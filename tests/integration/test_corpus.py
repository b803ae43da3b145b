"""Requests that Hypothesis makes up: no failure of the server, and nothing is left behind.

`python -m benchmarks.hostile --requests 100000` sends more of them.
"""

from __future__ import annotations

import httpx
from hypothesis import HealthCheck, given, settings

from benchmarks.hostility.corpus import HostileRequest, requests
from benchmarks.hostility.judge import Judge
from tests.integration.service import Service
from tests.integration.test_hostile import is_served
from tests.integration.test_leaving import within
from tests.integration.test_processes import process

# About ten seconds.
EXAMPLES = 750


def test_no_request_fails_the_server(service: Service, http: httpx.Client) -> None:
    judge = Judge(service.url)
    processes = [process("ray::ServeReplica:rayllm:Router"), process("ray::ServeReplica:rayllm:rayllm-demo")]

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(requests("rayllm-demo"))
    def check(request: HostileRequest) -> None:
        judge.check(request)

    assert is_served(http)
    before = [found.num_fds() for found in processes]
    check()
    assert judge.statuses[200]
    assert judge.statuses[400]
    assert is_served(http)
    assert within(60, lambda: service.unfinished() == 0)
    # Connections may be kept open for the next request; descriptors do not add up over hundreds of requests.
    assert within(60, lambda: all(found.num_fds() < most + 20 for found, most in zip(processes, before, strict=True)))
