"""Traces of requests, by OpenTelemetry.

The environment configures it, as OpenTelemetry specifies: `OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT` and the
like. Names are those of its conventions for generative AI.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any

from rayllm.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from rayllm.errors import ConfigError
from rayllm.serving.router.requests.record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider

_OPERATIONS = {
    CHAT: "chat",
    RESPONSES: "chat",
    MESSAGES: "chat",
    COMPLETIONS: "text_completion",
    EMBEDDINGS: "embeddings",
}
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class Tracing:
    """Exports one trace a request: a span of the router, with one span for each part of the request's time.

    Args:
        provider: OpenTelemetry's provider of tracers.
        processors: export the spans; they are added to the provider.
    """

    def __init__(self, provider: TracerProvider, processors: Sequence[SpanProcessor]) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        for processor in processors:
            provider.add_span_processor(processor)
        self._provider = provider
        self._processors = processors
        self._tracer = provider.get_tracer("rayllm", version("rayllm"))
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        """Begin the trace, or continue the client's.

        Args:
            record: the request's record, which gets the headers for the replica.
            headers: the client's; without a valid `traceparent`, a new trace begins.
        """
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent = self._propagator.extract(headers)
        record.span = self._tracer.start_span(
            record.endpoint, parent, kind=SpanKind.SERVER, start_time=_nanoseconds(record.created)
        )
        self._propagator.inject(record.trace_headers, set_span_in_context(record.span))

    def end(self, record: RequestRecord) -> None:
        """End the trace of a request that has ended."""
        from opentelemetry.trace import Status, StatusCode

        span = record.span
        if span is None:
            return
        if span.is_recording():
            span.update_name(f"{_operation(record)} {record.model_id}".strip())
            span.set_attributes(_attributes(record))
            if record.status >= 500:
                span.set_status(Status(StatusCode.ERROR, record.refusal))
            at = record.created
            for name, seconds in record.parts():
                if seconds:
                    self._export_part(span, name, _nanoseconds(at), _nanoseconds(at + seconds))
                    at += seconds
        span.end(_nanoseconds(record.created + record.total_s))
        # The record is kept for a while; the span is as large again.
        record.span = None

    def _export_part(self, parent: Span, name: str, start: int, end: int) -> None:
        # A tracer's own spans take six times as long, for locks and limits that finished spans without attributes do
        # not need.
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext

        of_parent = parent.context
        context = SpanContext(
            of_parent.trace_id,
            self._provider.id_generator.generate_span_id(),
            is_remote=False,
            trace_flags=of_parent.trace_flags,
            trace_state=of_parent.trace_state,
        )
        part = ReadableSpan(
            name,
            context,
            of_parent,
            parent.resource,
            instrumentation_scope=parent.instrumentation_scope,
            start_time=start,
            end_time=end,
        )
        for processor in self._processors:
            processor.on_end(part)

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()


def tracing_from_environment(environment: Mapping[str, str], instance: str) -> Tracing | None:
    """Tracing as the environment says; None if it asks for none.

    Args:
        environment: the process's environment variables.
        instance: id of this process, for `service.instance.id`.

    Raises:
        ConfigError: there is no such exporter, or it refuses its settings.
    """
    names = environment.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(environment.get, _ENDPOINTS)) else "none")
    if names == "none" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    attributes = {"service.instance.id": instance, "service.version": version("rayllm")}
    if not environment.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "rayllm"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    return Tracing(provider, [BatchSpanProcessor(_exporter(name.strip(), environment)) for name in names.split(",")])


def _exporter(name: str, environment: Mapping[str, str]) -> Any:
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    known = {each.name: each for each in entry_points(group="opentelemetry_traces_exporter")}
    chosen = _PROTOCOLS.get(protocol, protocol) if name == "otlp" else name
    if chosen not in known:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: there is no exporter `{chosen}` here; there are {', '.join(sorted(known))}."
        )
    return known[chosen].load()()


def _operation(record: RequestRecord) -> str:
    return _OPERATIONS.get(record.endpoint, record.endpoint.rpartition("/")[2])


def _attributes(record: RequestRecord) -> dict[str, Any]:
    model = f"{record.model_id}:{record.adapter}" if record.adapter else record.model_id
    attributes: dict[str, Any] = {
        "http.request.method": "POST",
        "url.path": record.endpoint,
        "http.response.status_code": record.status,
        "gen_ai.operation.name": _operation(record),
        "gen_ai.provider.name": "rayllm",
        "gen_ai.request.model": model,
        "rayllm.request_id": record.request_id,
        "rayllm.replica": record.replica,
        "rayllm.replica_choice": record.choice,
        "rayllm.attempts": record.attempts,
    }
    if record.refusal or record.status >= 400:
        attributes["error.type"] = record.refusal or str(record.status)
    if stats := record.stats:
        attributes |= {
            "gen_ai.response.model": model,
            "gen_ai.usage.input_tokens": stats.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": stats.cached_tokens,
            "gen_ai.usage.output_tokens": stats.generated_tokens,
            "rayllm.slowest_gap": stats.slowest_gap_s,
            "rayllm.preemptions": stats.preemptions,
        }
        if stats.finish_reason:
            attributes["gen_ai.response.finish_reasons"] = (stats.finish_reason,)
    return attributes


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
