from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from rayllm.core.exposition import Renderer, content_type, merge, wants_openmetrics


def registry(count: int) -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("requests", "Requests.\nMany.", ["model"], registry=made).labels('a"b').inc(count)
    Histogram("wait_seconds", "Wait.", buckets=(1, 2), registry=made).observe(count)
    Gauge("vllm:kv_use", "A name like vLLM's.", registry=made).set(count)
    Gauge("load", "Load.", ["replica"], registry=made).labels("mine").set(count)
    return made


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_pages_of_several_processes_are_one(is_openmetrics: bool) -> None:
    pages = [Renderer(registry(n), {"replica": f"r{n}"}).page(is_openmetrics) for n in (1, 2)]
    page = merge([*pages, ""])
    families = {f.name: f for f in (parse_openmetrics if is_openmetrics else parse_plain)(page)}
    assert families.keys() == {"requests", "wait_seconds", "vllm:kv_use", "load"}
    requests = families["requests"]
    assert requests.documentation == "Requests.\nMany."
    values = {s.labels["replica"]: s.value for s in requests.samples if s.name == "requests_total"}
    assert values == {"r1": 1, "r2": 2}
    assert all(s.labels["model"] == 'a"b' for s in requests.samples if s.name == "requests_total")
    # A sample's own label wins.
    assert {s.labels["replica"] for s in families["load"].samples} == {"mine"}
    assert page.count("# EOF") == is_openmetrics
    assert page.endswith("# EOF\n") == is_openmetrics


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_later_pages_have_new_values_and_new_series(is_openmetrics: bool) -> None:
    metrics = CollectorRegistry()
    asked = Counter("requests", "Requests.", ["model"], registry=metrics)
    asked.labels("a").inc()
    renderer = Renderer(metrics, {"router": "r"})
    assert 'requests_total{model="a",router="r"} 1.0\n' in renderer.page(is_openmetrics)
    asked.labels("a").inc(2.5)
    asked.labels("b").inc()
    page = renderer.page(is_openmetrics)
    assert 'requests_total{model="a",router="r"} 3.5\n' in page
    assert 'requests_total{model="b",router="r"} 1.0\n' in page
    assert page == Renderer(metrics, {"router": "r"}).page(is_openmetrics)
    asked.clear()
    assert "requests_total{" not in renderer.page(is_openmetrics)


def test_no_pages_are_an_empty_one() -> None:
    assert merge([]) == ""
    assert merge(["", "# EOF\n"]) == "# EOF\n"


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [("", False), ("*/*", False), ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", True)],
)
def test_the_format_is_the_scrapers_choice(accept: str, is_openmetrics: bool) -> None:
    assert wants_openmetrics(accept) is is_openmetrics
    assert content_type(is_openmetrics).startswith("application/openmetrics-text" if is_openmetrics else "text/plain")
