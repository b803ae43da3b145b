"""Traces of requests, by OpenTelemetry. Names are those of its conventions for generative AI.

Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rayllm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from rayllm.serving.wire.record import RequestRecord

_OPERATIONS = {
    **dict.fromkeys((CHAT, RESPONSES, MESSAGES), "chat"),
    COMPLETIONS: "text_completion",
    EMBEDDINGS: "embeddings",
}
_UNSET = Status(StatusCode.UNSET)


class HashedResource(Resource):
    """A resource that computes its hash only once; exporters need the hash for every span."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class Tracing:
    """Exports one trace a request: a span of the router, with one span for each part of the request's time."""

    def __init__(self, provider: TracerProvider, processors: Sequence[SpanProcessor]) -> None:
        for processor in processors:
            provider.add_span_processor(processor)
        self._provider = provider
        self._processors = processors
        self._tracer = provider.get_tracer("rayllm", version("rayllm"))
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        """Begin the trace, or continue the client's if the client's `headers` have a valid `traceparent`."""
        parent = self._propagator.extract(headers)
        record.span = self._tracer.start_span(record.endpoint, parent, kind=SpanKind.SERVER)
        self._propagator.inject(record.trace_headers, set_span_in_context(record.span))

    def end(self, record: RequestRecord) -> None:
        span = record.span
        # The record is kept for a while without the span, which is as large as the record.
        record.span = None
        if span is None or not span.is_recording():
            return
        at = record.created
        for name, seconds in record.parts():
            if seconds:
                self._export(span, name, self._part_of(span.context), span.context, at, at + seconds)
                at += seconds
        self._export(
            span,
            f"{_operation(record)} {record.model_id}".strip(),
            span.context,
            span.parent,
            record.created,
            record.created + record.total_s,
            attributes={**(span.attributes or {}), **_attributes(record)},
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, record.refusal) if record.outcome >= 500 else _UNSET,
        )

    def _part_of(self, parent: SpanContext) -> SpanContext:
        return SpanContext(
            parent.trace_id,
            self._provider.id_generator.generate_span_id(),
            is_remote=False,
            trace_flags=parent.trace_flags,
            trace_state=parent.trace_state,
        )

    def _export(
        self,
        span: Span,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        start: float,
        end: float,
        **keys: Any,
    ) -> None:
        # A tracer's own spans take six times as long, for locks, limits and checks of values that finished spans do not
        # need.
        finished = ReadableSpan(
            name,
            context,
            parent,
            span.resource,
            instrumentation_scope=span.instrumentation_scope,
            start_time=int(start * 1e9),
            end_time=int(end * 1e9),
            **keys,
        )
        for processor in self._processors:
            processor.on_end(finished)

    def close(self) -> None:
        self._provider.shutdown()


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
        "rayllm.continuations": record.continuations,
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
