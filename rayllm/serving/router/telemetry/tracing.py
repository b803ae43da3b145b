"""Tracing by the environment variables of OpenTelemetry's specification.

Variables are `OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT` and the like. OpenTelemetry's SDK is imported only
where the environment asks for traces.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any

from rayllm.core.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.serving.router.telemetry.request_traces import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def tracing_from_environment(environment: Mapping[str, str], instance: str) -> "Tracing | None":
    """Tracing as the environment asks, if at all. Raises ConfigError if the exporter is missing or fails."""
    names = environment.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(environment.get, _ENDPOINTS)) else "none")
    if names == "none" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from rayllm.serving.router.telemetry.request_traces import HashedResource, Tracing

    attributes = {"service.instance.id": instance, "service.version": version("rayllm")}
    if not environment.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "rayllm"
    provider = TracerProvider(resource=HashedResource(Resource.create(attributes)), shutdown_on_exit=False)
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
