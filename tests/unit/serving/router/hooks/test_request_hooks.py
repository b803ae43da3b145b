"""Hooks, as clients of a router meet them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.datastructures import Headers

from rayllm.config import RouterConfig, load_app
from rayllm.core.endpoints import CHAT, MESSAGES
from rayllm.core.errors import ConfigError
from rayllm.serving.router.hooks.request_hooks import shown_headers
from tests.fakes.answers import Answer
from tests.fakes.clock import until
from tests.fakes.replica import Replica
from tests.fakes.router import FORM_PATH, RouterApplication, service

FILE = Path(__file__).parent / "policies.py"
MODELS = (*("plain", "other", "refuse", "change", "show", "raise", "returns-nan", "returns-nobody", "sleep", "wait"),)


def hook(name: str = "check", **keys: Any) -> dict[str, Any]:
    return {"callable": f"{FILE}:{name}", "timeout_s": 2.0, **keys}


class Hooked:
    """A router with hooks before one replica, which every model shares."""

    def __init__(self, *hooks: dict[str, Any]) -> None:
        self.answer = Answer(b"{}")
        self._replica = Replica(self.answer)
        self._hooks = hooks

    async def __aenter__(self) -> Hooked:
        self._listening = self._replica.listening()
        replica = await self._listening.__aenter__()
        self._service = service("relay", {model: [replica] for model in MODELS}, hooks=self._hooks or (hook(),))
        self.router: RouterApplication = await self._service.__aenter__()
        self.hooks = self.router.hooks
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._service.__aexit__(*error)
        await self._listening.__aexit__(*error)

    async def post(self, model: str, path: str = CHAT, **headers: str) -> tuple[int, dict[str, Any]]:
        reply = await self.router.client.post(path, json={"model": model}, headers=headers)
        return reply.status_code, reply.json().get("error")

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What the replica was sent."""
        return [json.loads(body) for body in self.answer.bodies]


async def test_an_allowed_request_is_not_changed() -> None:
    async with Hooked() as hooked:
        assert await hooked.post("plain") == (200, None)
        assert hooked.answer.bodies == [b'{"model":"plain"}']
        record = await hooked.router.record()
        assert 0 < record.hooks_s < record.total_s
        assert sum(seconds for _, seconds in record.parts()) == pytest.approx(record.total_s)


async def test_without_hooks_there_is_no_process() -> None:
    async with Hooked() as hooked:
        assert (await hooked.post("show"))[0] == 200
        pid = hooked.bodies[0]["seen"]["pid"]
        await hooked.hooks.configure(RouterConfig())
        await until(lambda: not psutil.pid_exists(pid))
        former = [child.pid for child in psutil.Process().children()]
        assert await hooked.post("refuse") == (200, None)
        assert {child.pid for child in psutil.Process().children()} <= set(former)
        await hooked.hooks.configure(RouterConfig.model_validate({"hooks": [hook()]}))
        assert (await hooked.post("refuse"))[0] == 451


async def test_a_refusal_is_an_error_in_the_shape_of_its_api() -> None:
    async with Hooked() as hooked:
        status, error = await hooked.post("refuse")
        assert (status, error["code"], error["message"]) == (451, "sunday", "Not on Sundays.")
        status, error = await hooked.post("refuse", MESSAGES)
        assert (status, error["type"]) == (451, "invalid_request_error")
        assert hooked.bodies == []
        await until(lambda: len(hooked.router.records) == 2)
        assert {(record.refusal, record.model_id) for record in hooked.router.records} == {("hook", "refuse")}


async def test_a_changed_request_is_resolved_again() -> None:
    async with Hooked() as hooked:
        assert await hooked.post("change") == (200, None)
        assert hooked.bodies == [{"model": "other"}]
        assert hooked.router.records[0].model_id == "other"


async def test_hooks_are_asked_in_order_until_one_refuses() -> None:
    async with Hooked(hook(), hook("policy")) as hooked:
        assert (await hooked.post("plain"))[1]["message"] == "By an object."
        assert (await hooked.post("refuse"))[1]["message"] == "Not on Sundays."


async def test_a_hook_sees_the_request_without_credentials() -> None:
    async with Hooked() as hooked:
        secrets = {"authorization": "Bearer sk-secret", "x-api-key": "sk-secret", "cookie": "a=sk-secret"}
        await hooked.post("show", **secrets, **{"x-team": "blue", "x-note": "my sk-secret", "x-request-id": "r1"})
        [body] = hooked.bodies
        seen = body["seen"]
        assert (seen["id"], seen["path"], seen["model"], seen["body"]) == ("r1", CHAT, "show", {"model": "show"})
        assert seen["headers"]["x-team"] == "blue"
        assert "sk-secret" not in json.dumps(body)


@pytest.mark.parametrize("name", ["x-session-token", "proxy-authorization", "x-amz-security-token", "api-key"])
def test_headers_that_sound_like_credentials_are_not_shown(name: str) -> None:
    assert shown_headers(Headers({name: "x", "accept": "y"})) == {"accept": "y"}


@pytest.mark.parametrize("model", ["raise", "returns-nan", "returns-nobody", "sleep"])
async def test_a_hook_that_fails_costs_only_its_own_request(model: str) -> None:
    async with Hooked(hook(timeout_s=0.5)) as hooked:
        failing = asyncio.create_task(hooked.post(model))
        others = [asyncio.create_task(hooked.post("plain")) for _ in range(5)]
        assert [await other for other in others] == [(200, None)] * 5
        status, error = await failing
        assert (status, error["code"]) == (500, "hook_failed")
        assert "boom" not in error["message"]
        assert len(hooked.bodies) == 5


async def test_a_hook_that_may_fail_does_not_stop_a_request() -> None:
    async with Hooked(hook(on_error="allow")) as hooked:
        assert await hooked.post("raise") == (200, None)
        assert await hooked.post("returns-nobody") == (200, None)
        assert hooked.bodies == [{"model": "raise"}, {"model": "returns-nobody"}]


async def test_a_hook_whose_client_leaves_does_not_keep_the_request(tmp_path: Path) -> None:
    async with Hooked(hook(timeout_s=60)) as hooked:
        body = {"model": "wait", "file": str(tmp_path / "go")}
        asking = asyncio.create_task(hooked.router.client.post(CHAT, json=body))
        await until(lambda: (tmp_path / "go.begun").exists())
        asking.cancel()
        assert (await hooked.router.record()).status == 499


async def test_a_form_may_be_refused_but_not_changed() -> None:
    async with Hooked() as hooked:
        post = hooked.router.client.post
        replies = [
            await post(FORM_PATH, data={"model": model}, files={"file": b"x"})
            for model in ("plain", "refuse", "change")
        ]
        assert [reply.status_code for reply in replies] == [200, 451, 500]


async def test_usage_is_reported_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "usage.jsonl"
    monkeypatch.setenv("NOTED_USAGE", str(noted))
    async with Hooked(hook(), hook("note", when="usage")) as hooked:
        await hooked.post("plain", **{"x-request-id": "r1"})
        await hooked.post("refuse", **{"x-request-id": "r2"})
        await until(lambda: noted.exists() and noted.read_text().count("\n") == 2)
    usages = {usage["id"]: usage for usage in map(json.loads, noted.read_text().splitlines())}
    assert (usages["r1"]["model"], usages["r1"]["status"], usages["r1"]["path"]) == ("plain", 200, CHAT)
    assert (usages["r2"]["status"], usages["r2"]["error"]) == (451, "hook")


@pytest.mark.parametrize(
    ("router", "said"),
    [
        ({"hooks": [{"callable": "check"}]}, "hooks.0.callable: `check` must be `package.module:name`"),
        ({"hooks": [{"callable": "a:b", "timeout_s": 0}]}, "hooks.0.timeout_s: "),
        ({"hooks": [{"callable": "a:b", "when": "usage", "on_error": "allow"}]}, "cannot be refused"),
        (
            {"hooks": [{"callable": "a:b"}], "batches": {"storage": "/x", "execution": "engines"}},
            "`batches.execution: engines` sends no request through a router",
        ),
    ],
)
def test_wrong_configurations_are_refused(router: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_app({"llm_configs": [{"model_loading_config": {"model_id": "m"}}], "router": router})
    assert said in raised.value.message


def test_files_are_looked_up_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "policy.py").touch()
    args = {"llm_configs": [{"model_loading_config": {"model_id": "m"}}]}
    config = load_app({**args, "router": {"hooks": [{"callable": "policy.py:check"}]}}, tmp_path)
    assert config.router.hooks[0].callable == f"{tmp_path}/policy.py:check"
