"""Metrics for routers."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from rayllm.core.headers import KEY, METRICS_URL
from rayllm.serving.replica.middleware import RouterGate


async def application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not asked")


async def get(app: Any, path: str = "/") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://replica") as client:
        return await client.get(path, headers={KEY: "secret"})


async def test_metrics_are_those_of_the_process_with_its_labels() -> None:
    reply = await get(RouterGate(application, "secret", None, {"model": "m", "replica": "r"}), METRICS_URL)
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    [info] = families["python_info"].samples
    assert (info.labels["model"], info.labels["replica"]) == ("m", "r")
