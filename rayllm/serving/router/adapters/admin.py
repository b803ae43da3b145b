"""vLLM's endpoints for loading and unloading adapters by name, for administrators.

Source: https://docs.vllm.ai/en/stable/features/lora.html#dynamically-serving-lora-adapters
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rayllm.core.endpoints import DETOKENIZE
from rayllm.core.errors import (
    ADAPTER_UNAVAILABLE,
    EngineError,
    ModelNotFoundError,
    RequestError,
    UnavailableError,
)
from rayllm.core.headers import ADAPTER_RELOAD
from rayllm.core.json_body import parse_body, read_body
from rayllm.lora import AdapterName
from rayllm.routing import RoutingRequest
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry, RegisteredAdapter
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.model_registry import ModelRegistry, ResolvedModel
from rayllm.serving.router.replicas.dispatcher import Dispatcher
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_search import ReplicaSearch
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome
from rayllm.serving.wire.relay.transport import HttpTransport

_MAX_BYTES = 65536
_FIELDS = {"lora_name": str, "lora_path": str, "load_inplace": bool}


@dataclass(eq=False)
class AdapterAdmin:
    """The two endpoints."""

    models: ModelRegistry
    adapter_registry: AdapterRegistry
    dispatcher: Dispatcher
    transport: HttpTransport
    admin_keys: AdminKeys

    async def load(self, request: Request) -> Response:
        """`POST /v1/load_lora_adapter`: load the adapter in one replica to validate it, then register it for all."""
        self.admin_keys.check(request)
        body = await _read(request, ("lora_name", "lora_path"))
        name, path = body["lora_name"], body["lora_path"]
        adapter = self._parse_target(name, path)
        if AdapterName(adapter.base, adapter.adapter) in self.models.modules:
            raise RequestError(f"`{name}` is an adapter of the configuration (`lora_modules`).", "lora_name")
        registered = await self.adapter_registry.all()
        if name in registered and not body.get("load_inplace"):
            message = f"The adapter `{name}` is loaded already; send `load_inplace: true` to replace it."
            raise RequestError(message, "lora_name")
        for other, entry in registered.items():
            # The engine identifies an adapter by its full id: two entries would evict each other.
            if other != name and (entry.base, entry.adapter) == (adapter.base, adapter.adapter):
                raise RequestError(f"This adapter is loaded already, as `{other}`; unload that first.", "lora_name")
        await self._validate(name, adapter)
        await self.adapter_registry.add(name, adapter)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        """`POST /v1/unload_lora_adapter`: unregister an adapter; engines drop it at their next health check."""
        self.admin_keys.check(request)
        name = (await _read(request, ("lora_name",)))["lora_name"]
        if name not in await self.adapter_registry.all():
            message = f"No adapter `{name[:200]}` was loaded here; those that a model finds itself stay."
            raise ModelNotFoundError(message, "lora_name")
        await self.adapter_registry.remove(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    def _parse_target(self, name: str, path: str) -> RegisteredAdapter:
        """The adapter's base model: the one in its name, or the only one that takes adapters."""
        if name in self.models.names:
            raise RequestError(f"`{name}` is the name of a model.", "lora_name")
        resolved = self.models.parse_adapter(name)
        if resolved:
            return RegisteredAdapter(resolved.base, resolved.adapter, path)
        bases = self.models.lora_models
        adapter_id = self.models.parse_adapter(f"{bases[0]}:{name}") if len(bases) == 1 else None
        if adapter_id is None:
            registered = ", ".join(f"`{base}:<name>`" for base in bases) or "none: no model here has a `lora_config`"
            raise RequestError(f"`{name[:200]}` is no name for an adapter here. Names: {registered}.", "lora_name")
        return RegisteredAdapter(adapter_id.base, adapter_id.adapter, path)

    async def _validate(self, name: str, adapter: RegisteredAdapter) -> None:
        """Load the adapter in one replica.

        Raises:
            RayLLMError: the replica refuses it.
        """
        resolved = ResolvedModel(adapter.base, adapter.adapter, adapter.path)
        body = json.dumps({"model": name, "tokens": []}).encode()
        headers = {"content-type": "application/json", ADAPTER_RELOAD: "1", **resolved.headers(name)}

        status, answer = 0, b""

        async def send(replica: Replica, search: ReplicaSearch) -> Outcome:
            nonlocal status, answer
            try:
                async with self.transport.send(replica, "POST", DETOKENIZE, body, headers) as reply:
                    status, answer = reply.status, await reply.content.read()
            except NotAnsweredError as error:
                return error.outcome
            return Outcome.ANSWERED

        await self.dispatcher.dispatch(adapter.base, RoutingRequest(adapter=adapter.adapter), send)
        error = _error(answer) if status >= 400 else None
        if error and error.get("code") == ADAPTER_UNAVAILABLE:
            raise UnavailableError(str(error["message"]), "lora_path", ADAPTER_UNAVAILABLE, 10)
        if error and error.get("param") == "model":
            raise RequestError(str(error["message"]), "lora_path", error.get("code"))
        if status >= 500:
            raise EngineError("The replica failed on this adapter; its log says why.")


async def _read(request: Request, required: Sequence[str]) -> dict[str, Any]:
    """Read and validate the request's fields.

    Raises:
        RequestError: one is missing, unknown or of the wrong type.
    """
    body = parse_body(await read_body(request, _MAX_BYTES))
    for field in required:
        if not body.get(field):
            raise RequestError(f"`{field}` is missing.", field)
    for field, value in body.items():
        if field not in _FIELDS:
            raise RequestError(f"`{field[:200]}` is not a known field; use {', '.join(_FIELDS)}.", field[:200])
        if not isinstance(value, _FIELDS[field]):
            raise RequestError(f"`{field}` is of the wrong type.", field)
    return body


def _error(answer: bytes) -> dict[str, Any] | None:
    try:
        error = json.loads(answer)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return error if isinstance(error, dict) else None
