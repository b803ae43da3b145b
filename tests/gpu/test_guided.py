"""A guided decoding backend, for which vLLM's first model runner is used; and requests that its second cannot take."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from tests.compatibility.cases import FRANCE
from tests.gpu.conftest import ServeModels
from tests.gpu.device import Device
from tests.gpu.models import demo
from tests.integration.service import BACKENDS

GUIDED, PLAIN = "guided", "plain"


@pytest.fixture(scope="module")
def url(device: Device, serve_models: ServeModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    backends = tmp_path_factory.mktemp("backends")
    shutil.copytree(BACKENDS / "page-example", backends / "page-example")
    guided = demo(GUIDED, device.share(0.5), guided_decoding={"backends_dir": str(backends), "trust_custom_code": True})
    with serve_models(guided, demo(PLAIN, device.share(0.5))) as url:
        yield url


def test_guided_decoding_backend(url: str) -> None:
    openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    body = {"nvext": {"guided_decoding_backend": "page-example"}}
    reply = openai.chat.completions.create(
        model=GUIDED,
        messages=[FRANCE],  # type: ignore[list-item]
        temperature=0,
        max_tokens=64,
        extra_body=body,
    )
    assert reply.choices[0].message.content == "Custom decoding test"


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {str(token): 1 for token in range(1025)}},
        {"allowed_token_ids": list(range(1025))},
        {"bad_words": ["France"] * 1025},
        {"min_tokens": 1, "stop_token_ids": list(range(129))},
    ],
)
def test_requests_that_would_end_an_engine_are_refused(url: str, fields: dict[str, object]) -> None:
    body = {"model": PLAIN, "messages": [FRANCE], "max_tokens": 4, **fields}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 400
    plain = httpx.post(f"{url}/v1/chat/completions", json={**body, **dict.fromkeys(fields)}, timeout=60)
    assert plain.status_code == 200, plain.text
