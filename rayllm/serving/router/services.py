"""What a router's process keeps while its configuration changes."""

from dataclasses import dataclass

from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.access.rate_limiter import RateLimiter
from rayllm.serving.router.hooks.request_hooks import RequestHooks
from rayllm.serving.router.replicas.quarantine import Quarantine
from rayllm.serving.router.telemetry.telemetry import Telemetry
from rayllm.serving.wire.wire import Wire


@dataclass(frozen=True)
class RouterServices:
    """What a router's process keeps while its configuration changes."""

    wire: Wire
    adapter_registry: AdapterRegistry
    telemetry: Telemetry
    limiter: RateLimiter
    credentials: Credentials
    quarantine: Quarantine
    hooks: RequestHooks
