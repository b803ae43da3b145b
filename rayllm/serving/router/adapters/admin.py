"""vLLM's endpoints for loading and unloading adapters by name, for administrators.

Source: https://docs.vllm.ai/en/stable/features/lora.html#dynamically-serving-lora-adapters
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rayllm.core.endpoints import DETOKENIZE
from rayllm.core.errors import ADAPTER_UNAVAILABLE, EngineError, ModelNotFoundError, RequestError, UnavailableError
from rayllm.core.headers import ADAPTER_RELOAD
from rayllm.core.json_body import parse_body, read_body
from rayllm.lora import Adapter
from rayllm.routing import RoutingRequest
from rayllm.serving.cluster.state.adapter_registry import AdapterRegistry
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
    """The endpoints `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`."""

    models: ModelRegistry
    adapter_registry: AdapterRegistry
    dispatcher: Dispatcher
    transport: HttpTransport
    admin_keys: AdminKeys

    async def load(self, request: Request) -> Response:
        """`POST /v1/load_lora_adapter`: load the adapter in one replica to validate it, then register it for all."""
        self.admin_keys.check(request)
        body = await _read(request, ("lora_name", "lora_path"))
        name = body["lora_name"]
        target = self._parse_target(name)
        if target in self.models.modules:
            raise RequestError(f"`{name}` is an adapter of the configuration (`lora_modules`).", "lora_name")
        registered = await self.adapter_registry.all()
        if name in registered and not body.get("load_inplace"):
            message = f"The adapter `{name}` is registered already; send `load_inplace: true` to replace it."
            raise RequestError(message, "lora_name")
        for other, entry in registered.items():
            # The engine identifies an adapter by its full name: two entries would evict each other.
            if other != name and str(entry) == str(target):
                message = f"This adapter is registered already, as `{other}`; unload `{other}` first."
                raise RequestError(message, "lora_name")
        adapter = replace(target, source=body["lora_path"])
        await self._validate(name, adapter)
        await self.adapter_registry.add(name, adapter)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        """`POST /v1/unload_lora_adapter`: unregister an adapter; engines drop it at their next health check."""
        self.admin_keys.check(request)
        name = (await _read(request, ("lora_name",)))["lora_name"]
        if name not in await self.adapter_registry.all():
            message = (
                f"No adapter `{name[:200]}` is registered. Only adapters of /v1/load_lora_adapter can be unloaded, not "
                "those of a model's file."
            )
            raise ModelNotFoundError(message, "lora_name")
        await self.adapter_registry.remove(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    def _parse_target(self, name: str) -> Adapter:
        """The adapter that a name means: of the base model in the name, or of the only model that takes adapters."""
        if name in self.models.names:
            raise RequestError(f"`{name}` is the name of a model.", "lora_name")
        bases = self.models.lora_models
        adapter = self.models.parse_adapter(name)
        if adapter is None and len(bases) == 1:
            adapter = self.models.parse_adapter(f"{bases[0]}:{name}")
        if adapter is None:
            names = ", ".join(f"`{base}:<name>`" for base in bases) or "none: no model here has a `lora_config`"
            raise RequestError(f"`{name[:200]}` is no name for an adapter here. Names: {names}.", "lora_name")
        return adapter

    async def _validate(self, name: str, adapter: Adapter) -> None:
        body = json.dumps({"model": name, "tokens": []}).encode()
        headers = {
            "content-type": "application/json",
            ADAPTER_RELOAD: "1",
            **ResolvedModel.for_adapter(adapter).headers(name),
        }
        status, answer = 0, b""

        async def send(replica: Replica, search: ReplicaSearch) -> Outcome:
            nonlocal status, answer
            try:
                async with self.transport.send(replica, "POST", DETOKENIZE, body, headers) as reply:
                    status, answer = reply.status, await reply.content.read()
            except NotAnsweredError as error:
                return error.outcome
            return Outcome.ANSWERED if status < 500 else Outcome.ERROR

        await self.dispatcher.dispatch(adapter.base, RoutingRequest(adapter=adapter.name), send)
        error = _error(answer) if status >= 400 else None
        if error and error.get("code") == ADAPTER_UNAVAILABLE:
            raise UnavailableError(str(error["message"]), "lora_path", ADAPTER_UNAVAILABLE, 10)
        if error and error.get("param") == "model":
            raise RequestError(str(error["message"]), "lora_path", error.get("code"))
        if status >= 500:
            raise EngineError("The replica failed on this adapter; its log says why.")


async def _read(request: Request, required: Sequence[str]) -> dict[str, Any]:
    """Read the request's fields. Raises RequestError if a field is missing, unknown or of a wrong type."""
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
