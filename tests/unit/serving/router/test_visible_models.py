"""What callers learn of models that their keys may not use, from the whole application with its gate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from rayllm.access import Key, KeyFile
from rayllm.access.key import key_hash
from rayllm.config import load_app
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.cluster.state.quota_registry import QuotaRegistry
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.access.rate_limiter import RateLimiter
from rayllm.serving.router.application import RouterApplication
from rayllm.serving.router.hooks.request_hooks import RequestHooks
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.readiness import Deployments, Readiness
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.quarantine import Quarantine
from rayllm.serving.router.services import RouterServices
from rayllm.serving.router.telemetry.metrics import RouterMetrics
from rayllm.serving.router.telemetry.metrics_page import metrics_page
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.router.telemetry.telemetry import Telemetry
from rayllm.serving.wire.relay.transport import HttpTransport
from rayllm.serving.wire.wire import Wire

PAGE = """# HELP rayllm_requests_total Requests.
# TYPE rayllm_requests_total counter
rayllm_requests_total{adapter="",model="open",router="r"} 1.0
rayllm_requests_total{adapter="",model="secret",router="r"} 1.0
rayllm_requests_total{adapter="hidden",model="open",router="r"} 1.0
rayllm_requests_total{router="r"} 1.0
vllm:requests{engine="0",model_name="open"} 1.0
vllm:requests{engine="0",model_name="secret"} 1.0
vllm:lora_requests_info{running_lora_adapters="secret"} 1.0
"""


async def nobody(argument: Any) -> list[Any]:
    return []


class NoRegistry(AdapterRegistry):
    async def all(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {}


class Application:
    """An application with two models, of which the key `some` may use one and what begins with its name, and `all`
    both.
    """

    def __init__(self, folder: Path, running: set[str]) -> None:
        file = KeyFile(str(folder / "keys.yaml"))
        with file.change() as keys:
            keys.append(Key(name="some", hash=key_hash("some", file.salt), models=("open*",)))
            keys.append(Key(name="all", hash=key_hash("all", file.salt)))
        models = [{"model_loading_config": {"model_id": name}} for name in ("open", "secret")]
        router = {"keys": file.uri, "model_aliases": {"hidden": "secret"}}
        self._config = load_app({"llm_configs": models, "router": router})
        self._running = running

    async def get(self, path: str, key: str = "") -> httpx.Response:
        config, credentials, transport = self._config, Credentials(), HttpTransport(1)
        await credentials.configure(config.router)
        names = {"open": "Open", "secret": "Secret"}
        page = partial(metrics_page, lambda _: self._page(), dict, transport)
        app = RouterApplication(
            config,
            RouterServices(
                Wire(transport),
                NoRegistry("app"),
                Telemetry(RouterMetrics(dict), RecentRequests()),
                RateLimiter(QuotaRegistry("app", "router")),
                credentials,
                Quarantine(nobody),
                RequestHooks(),
            ),
            Dispatcher({}),
            Readiness(config, names, self._running.__contains__, lambda: Deployments({}, {})),
            {},
            AdminKeys([]),
            [Route("/metrics", page)],
        ).app
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
                return await client.get(path, headers=headers)
        finally:
            await credentials.stop()

    async def _page(self) -> list[str]:
        return [PAGE]


@pytest.mark.parametrize(("key", "ids"), [("", []), ("some", ["open"]), ("all", ["open", "secret"])])
async def test_ready_names_the_models_of_the_key(key: str, ids: list[str], tmp_path: Path) -> None:
    answer = await Application(tmp_path, {"open", "secret"}).get("/ready", key)
    assert (answer.status_code, answer.json().get("models", [])) == (200, ids)
    assert [*answer.json().get("phases", [])] == ids
    answer = await Application(tmp_path / "other", {"open"}).get("/ready", key)
    assert answer.status_code == 503
    assert ("secret" in answer.text) == (key == "all")
    assert [*answer.json().get("phases", [])] == ids


async def test_a_wrong_key_asks_for_nothing(tmp_path: Path) -> None:
    answer = await Application(tmp_path, set()).get("/ready", "other")
    assert (answer.status_code, answer.json().keys()) == (503, {"error"})
    assert (await Application(tmp_path / "other", set()).get("/metrics")).status_code == 401


async def test_metrics_are_of_the_models_of_the_key(tmp_path: Path) -> None:
    assert (await Application(tmp_path, set()).get("/metrics", "all")).text == PAGE
    shown = (await Application(tmp_path / "other", set()).get("/metrics", "some")).text
    assert [line for line in PAGE.splitlines() if line not in shown.splitlines()] == [
        'rayllm_requests_total{adapter="",model="secret",router="r"} 1.0',
        'rayllm_requests_total{router="r"} 1.0',
        'vllm:requests{engine="0",model_name="secret"} 1.0',
        'vllm:lora_requests_info{running_lora_adapters="secret"} 1.0',
    ]


async def test_an_unknown_model_is_told_with_those_of_the_key(tmp_path: Path) -> None:
    answer = await Application(tmp_path, set()).get("/v1/models/opened", "some")
    assert answer.status_code == 404
    assert "`open`" in answer.text
    assert "secret" not in answer.text
    assert "hidden" not in answer.text
