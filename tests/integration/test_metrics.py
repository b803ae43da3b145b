"""`GET /metrics`: what routers counted, against what clients were told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from rayllm.serving.replica.metrics import SERIES as REPLICA_SERIES
from rayllm.serving.router.telemetry.metrics import SERIES
from tests.integration.observability_files import expressions
from tests.integration.service import Service
from tests.integration.test_leaving import within
from tests.integration.test_openai_api import CHAT, COMPLETIONS, PLAIN, PROMPT, events

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
# Those that nothing here need have counted yet, and those that may be 0, which Ray leaves out.
RARE = {
    "rayllm_adapter_seconds",
    "rayllm_fallbacks_total",
    "rayllm_fetched_bytes_total",
    "rayllm_refused_total",
}
ZERO = {"rayllm_continuations_total", "rayllm_retries_total"}
RELAYED = {"origin": "http://elsewhere"}
"""Headers of a request whose reply passes through the router."""


def scrape(http: httpx.Client) -> Counter[tuple[str, ...]]:
    """The values of RayLLM's own series, by name and labels but the router's, which are added up."""
    reply = http.get("/metrics")
    assert reply.status_code == 200
    values: Counter[tuple[str, ...]] = Counter()
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            if sample.name.startswith("rayllm_"):
                labels = sorted((name, value) for name, value in sample.labels.items() if name != "router")
                values[(sample.name, *(f"{name}={value}" for name, value in labels))] += sample.value
    return values


class Watched:
    """What the requests of a test have changed."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._before = scrape(http)

    def changes(self) -> dict[tuple[str, ...], float]:
        after = scrape(self._http)
        return {key: value - self._before[key] for key, value in after.items() if value != self._before[key]}

    def total(self, name: str, *labels: str) -> float:
        return sum(value for key, value in self.changes().items() if key[0] == name and set(labels) <= set(key))


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def labels(model: str = "rayllm-demo", adapter: str = "", endpoint: str = CHAT, **more: str) -> tuple[str, ...]:
    named = {"model": model, "adapter": adapter, "endpoint": endpoint, **more}
    return tuple(f"{name}={value}" for name, value in sorted(named.items()))


@pytest.mark.parametrize("headers", [{}, RELAYED], ids=["handed over", "relayed"])
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_those_that_the_client_was_told(http: httpx.Client, headers: dict[str, str], stream: bool) -> None:
    watched = Watched(http)
    body = {"model": "rayllm-demo:pirate", "stream": stream, **QUESTION, "max_tokens": 5}
    reply = http.post(
        CHAT, json=body | ({"stream_options": {"include_usage": True}} if stream else {}), headers=headers
    )
    assert "rayllm-stats" not in reply.text
    assert "x-rayllm-stats" not in reply.headers
    usage = events(reply)[-1]["usage"] if stream else reply.json()["usage"]
    changes = watched.changes()
    tokens = {
        kind: changes["rayllm_tokens_total", *labels(adapter="pirate", kind=kind)] for kind in ("prompt", "completion")
    }
    assert tokens == {"prompt": usage["prompt_tokens"], "completion": 5}
    assert usage["completion_tokens"] == 5
    assert changes["rayllm_requests_total", *labels(adapter="pirate", status="200")] == 1
    finished = ("adapter=pirate", "finish_reason=length", "model=rayllm-demo")
    assert changes["rayllm_finished_requests_total", *finished] == 1


def test_answers_to_one_prompt_count_it_once(http: httpx.Client) -> None:
    watched = Watched(http)
    body = {"model": "rayllm-demo", "prompt": PROMPT, "n": 3, "max_tokens": 4, "ignore_eos": True}
    usage = http.post(COMPLETIONS, json=body).json()["usage"]
    assert watched.total("rayllm_tokens_total", "kind=prompt") == usage["prompt_tokens"]
    assert watched.total("rayllm_tokens_total", "kind=completion") == usage["completion_tokens"] == 12


def test_the_parts_of_a_request_are_within_the_whole(http: httpx.Client) -> None:
    watched = Watched(http)
    http.post(CHAT, json={"model": "rayllm-demo", **QUESTION, "max_tokens": 64, "ignore_eos": True})
    parts = ("router", "engine_queue", "prefill", "decode")
    seconds = {name: watched.total(f"rayllm_{name}_seconds_sum") for name in (*parts, "request")}
    assert min(seconds.values()) >= 0
    assert seconds["decode"] > 0
    assert sum(seconds[name] for name in parts) <= seconds["request"]
    assert 0 < watched.total("rayllm_time_to_first_byte_seconds_sum") <= seconds["request"]


def test_errors_have_their_status_and_no_made_up_labels(http: httpx.Client) -> None:
    watched = Watched(http)
    assert http.post(CHAT, json={"model": "made-up", **QUESTION}).status_code == 404
    assert http.post(CHAT, json={"model": "rayllm-demo:made-up", **QUESTION}).status_code == 404
    assert http.post(CHAT, json={"model": "rayllm-demo", **QUESTION, "max_tokens": -1}).status_code == 400
    changes = {key: value for key, value in watched.changes().items() if key[0] == "rayllm_requests_total"}
    assert sum(changes.values()) == 3
    assert not any("made-up" in text for key in watched.changes() for text in key)
    assert changes["rayllm_requests_total", *labels(status="400")] == 1


def test_requests_are_counted_once(http: httpx.Client) -> None:
    """By routers, and not by the middleware of vLLM's server in replicas as well."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    counted = [sample.name for family in families for sample in family.samples if sample.value]
    assert "rayllm_requests_total" in counted
    assert [name for name in counted if name.startswith("http_") and not name.endswith("_created")] == []


def test_a_page_in_openmetrics_has_every_process(http: httpx.Client) -> None:
    reply = http.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    samples: list[Any] = [sample for family in parse_openmetrics(reply.text) for sample in family.samples]
    names = {sample.name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for sample in samples}
    assert {each.name for each in (*SERIES, *REPLICA_SERIES)} - RARE <= names
    engines = [sample for sample in samples if sample.name == "vllm:num_requests_running"]
    assert {sample.labels["model"] for sample in engines} == {"rayllm-demo", PLAIN}
    assert all(sample.labels["replica"] for sample in engines)


def test_rays_exporter_has_them_too(http: httpx.Client) -> None:
    port = ray.nodes()[0]["MetricsExportPort"]
    expected = {f"ray_{each.name}" for each in (*SERIES, *REPLICA_SERIES) if each.name not in RARE | ZERO}
    expected |= {"ray_vllm_num_requests_running", "ray_vllm_generation_tokens_total", "ray_vllm_kv_cache_usage_perc"}

    def missing() -> set[str]:
        # Ray drops gauges that are not set for a while, and vLLM sets its own only while it works.
        for model in ("rayllm-demo", PLAIN):
            assert http.post(COMPLETIONS, json={"model": model, "prompt": PROMPT, "max_tokens": 8}).status_code == 200
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert set(re.findall(r'^ray_vllm_.*model_name="(.+?)"', text, re.MULTILINE)) <= {PLAIN}
        return expected - set(re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?(?:{| )", text, re.MULTILINE))

    assert within(60, lambda: not missing()), missing()


def test_dashboards_and_alerts_name_series_that_are_there(http: httpx.Client) -> None:
    http.post(CHAT, json={"model": "rayllm-demo:pirate", **QUESTION})
    http.post(CHAT, json={"model": "no-such-model", **QUESTION})
    there = {
        sample.name for family in text_string_to_metric_families(http.get("/metrics").text) for sample in family.samples
    }
    named = {name for expression in expressions() for name in re.findall(r"(?:rayllm_|vllm:)\w+", expression)}
    assert len(named) > 20
    assert named <= there


def test_a_scrape_costs_no_model_a_request(http: httpx.Client) -> None:
    watched = Watched(http)
    assert watched.total("rayllm_requests_total") == 0
