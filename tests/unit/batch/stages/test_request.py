from __future__ import annotations

import json
from typing import Any

import pytest
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError

from rayllm.access import Caller
from rayllm.batch.rows import ERROR
from rayllm.batch.stages import request
from rayllm.batch.stages.request import DeployedRequestStage

ROW = {"url": "/v1/chat/completions", "body": {"model": "m"}}


class Router:
    """A handle of a router with a scripted reply to each call."""

    def __init__(self, *outcomes: Any) -> None:
        self._outcomes = list(outcomes)
        self.senders: set[Any] = set()
        self.headers: dict[str, str] = {}
        self.answer = self

    async def remote(
        self, url: str, body: bytes, headers: dict[str, str], key: str, models: Any, tenant: str
    ) -> tuple[int, dict[str, str], bytes]:
        self.senders.add((key, models, tenant))
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome, self.headers, json.dumps({"said": outcome}).encode()


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([200], 200),
        ([400], 400),
        ([503, 429, 503, 200], 200),
        ([RayActorError(), DeploymentUnavailableError(None), 200], 200),
        ([500, 200], 200),
        ([500, 503, 500, 500], 500),
    ],
)
def test_it_waits_for_who_is_busy_or_away(outcomes: list[Any], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(*outcomes)
    monkeypatch.setattr(serve, "get_deployment_handle", lambda name, app: router)
    waited = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(request.asyncio, "sleep", sleep)
    (row,) = DeployedRequestStage("app", 1, Caller("alice", "research", ("m",)))([ROW])
    assert row["status_code"] == status
    assert router.senders == {("alice", ("m",), "research")}
    assert row["response"] == {"said": status}
    assert waited == sorted(waited)
    assert len(waited) == len(outcomes) - 1


def test_what_is_at_fault_itself_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "get_deployment_handle", lambda name, app: Router(ValueError("a bug")))
    (row,) = DeployedRequestStage("app", 1)([ROW])
    assert row[ERROR] == "ValueError: a bug"


def test_a_request_that_its_key_will_never_be_allowed_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(429)
    router.headers = {"x-should-retry": "false"}
    monkeypatch.setattr(serve, "get_deployment_handle", lambda name, app: router)
    (row,) = DeployedRequestStage("app", 1)([ROW])
    assert row["status_code"] == 429
