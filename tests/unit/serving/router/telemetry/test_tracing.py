"""Traces of requests, as OpenTelemetry's own SDK has them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult, StaticSampler
from opentelemetry.trace import SpanKind, StatusCode

from rayllm.core.endpoints import CHAT
from rayllm.core.errors import ConfigError
from rayllm.core.request_stats import RequestStats
from rayllm.serving.router.telemetry.request_traces import HashedResource, Tracing
from rayllm.serving.router.telemetry.tracing import tracing_from_environment
from rayllm.serving.wire.record import RequestRecord

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STATS = RequestStats(10, 4, 7, 0.5, 1.0, 3.0, "stop", 1, prepare_s=0.5)


def spans_of(headers: dict[str, str], record: RequestRecord) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(TracerProvider(), [SimpleSpanProcessor(exporter)])
    tracing.begin(record, headers)
    record.ended_at = record.started_at + 10
    tracing.end(record)
    tracing.close()
    return list(exporter.get_finished_spans())


def record(**keys: Any) -> RequestRecord:
    values: dict[str, Any] = {"status": 200, "routed_at": 101.0, "sent_at": 103.0, "stats": STATS}
    return RequestRecord(CHAT, "id", "m", "a", started_at=100.0, created=1000.0, **values | keys)


def test_a_request_is_a_span_with_one_for_each_part() -> None:
    made = record()
    *parts, request = spans_of({"traceparent": f"00-{TRACE}-{PARENT}-01"}, made)
    assert request.context is not None
    assert request.parent is not None
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert (request.name, request.kind) == ("chat m", SpanKind.SERVER)
    assert (request.start_time, request.end_time) == (1000 * 10**9, 1010 * 10**9)
    assert request.attributes is not None
    assert {key: request.attributes[key] for key in request.attributes if key.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "rayllm",
        "gen_ai.request.model": "m:a",
        "gen_ai.response.model": "m:a",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 7,
    }
    assert [part.name for part in parts] == ["router", "wait", "transfer", "prepare", "queue", "prefill", "decode"]
    assert {part.parent.span_id for part in parts if part.parent} == {request.context.span_id}
    ends = [part.end_time for part in parts]
    assert [part.start_time for part in parts] == [request.start_time, *ends[:-1]]
    assert ends[-1] == request.end_time
    # The replica continues the trace.
    assert made.trace_headers["traceparent"] == f"00-{TRACE}-{request.context.span_id:016x}-01"
    # Records are kept for a while, spans are not.
    assert made.span is None


@pytest.mark.parametrize("rubbish", ["", "x", f"00-{TRACE}-{PARENT}", f"00-{'0' * 32}-{PARENT}-01", "\xff" * 5000])
def test_rubbish_begins_a_new_trace(rubbish: str) -> None:
    request = spans_of({"traceparent": rubbish}, record())[-1]
    assert request.parent is None
    assert request.context is not None
    assert request.context.trace_id != int(TRACE, 16)


def test_a_trace_that_its_client_does_not_sample_is_not_exported() -> None:
    made = record()
    assert spans_of({"traceparent": f"00-{TRACE}-{PARENT}-00"}, made) == []
    assert made.trace_headers["traceparent"].endswith("-00")


def test_a_hashed_resource_stands_for_its_resource() -> None:
    resource = Resource.create({"service.name": "rayllm"})
    hashed = HashedResource(resource)
    assert {resource: "found"}[hashed] == {hashed: "found"}[resource] == "found"
    assert hashed.attributes == resource.attributes


def test_what_a_sampler_adds_is_exported() -> None:
    class Sampler(StaticSampler):
        def should_sample(self, *arguments: Any, **keys: Any) -> SamplingResult:
            return SamplingResult(Decision.RECORD_AND_SAMPLE, {"sampled.by": "rule"})

    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=Sampler(Decision.RECORD_AND_SAMPLE))
    tracing = Tracing(provider, [SimpleSpanProcessor(exporter)])
    made = record()
    tracing.begin(made, {})
    tracing.end(made)
    request = exporter.get_finished_spans()[-1]
    assert request.attributes is not None
    assert (request.attributes["sampled.by"], request.attributes["rayllm.request_id"]) == ("rule", "id")
    tracing.close()


def test_errors_are_marked() -> None:
    [*_, refused] = spans_of({}, record(status=503, refusal="overloaded_error", stats=None))
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "overloaded_error"
    [*_, broken] = spans_of({}, record(status=200, refusal="server_error", error_status=500, stats=None))
    assert broken.status.status_code is StatusCode.ERROR
    [*_, unknown] = spans_of({}, record(status=404, refusal="model_not_found", stats=None))
    assert unknown.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
)
def test_it_is_off_unless_the_environment_asks_for_it(environment: dict[str, str]) -> None:
    assert tracing_from_environment(environment, "router") is None


@pytest.mark.parametrize("name", ["console", "otlp_proto_http"])
def test_the_environment_names_the_exporter(name: str) -> None:
    tracing = tracing_from_environment({"OTEL_TRACES_EXPORTER": name}, "router")
    assert tracing is not None
    tracing.close()


def test_an_unknown_exporter_is_named() -> None:
    with pytest.raises(ConfigError, match="no exporter `zipkin` here; there are console"):
        tracing_from_environment({"OTEL_TRACES_EXPORTER": "zipkin"}, "router")
    with pytest.raises(ConfigError, match="no exporter `carrier-pigeon`"):
        tracing_from_environment(
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "router"
        )
