"""LoRA adapters in vLLM's engine and application."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from rayllm.engine.vllm.errors import one_line
from rayllm.errors import ADAPTER_UNAVAILABLE, EngineError, RayLLMError, RequestError, UnavailableError

logger = logging.getLogger(__name__)


# Error messages of vLLM, PyTorch and safetensors for invalid adapter files; all others are the engine's failures.
_BROKEN_ADAPTER = re.compile(
    r"LoRA rank|[Mm]issing required configuration|modules_to_save|DoRA|[Aa]dapter bias|target modules in"
    r"|unsupported LoRA weight|LoRA weight adapter_id|doesn't contain tensors|vocabulary size|LoRA-B output dim"
    r"|size of tensor|size mismatch|shape mismatch|deserializing header|SafetensorError|JSONDecodeError|Expecting value"
)


class AdapterSlots:
    """The adapters in an engine and its application, which finds them by the model adapter_id in a request.

    Args:
        engine: an AsyncLLM.
        models: the application's `OpenAIServingModels`.
    """

    def __init__(self, engine: Any, models: Any) -> None:
        self._engine = engine
        self._models = models

    async def add(self, adapter_id: str, key: str, folder: Path) -> Any:
        """Load an adapter; see `AdapterEngine.add`.

        Raises:
            RequestError: its files are at fault.
            UnavailableError: the engine failed on it, for want of memory for example.
            EngineError: the engine is dead.
        """
        from vllm.lora.request import LoRARequest

        request = LoRARequest(key, self._models.lora_id_counter.inc(1), str(folder))
        try:
            await self._engine.add_lora(request)
        except Exception as error:
            raise self._error(adapter_id, folder, error) from None
        return request

    def _error(self, adapter_id: str, folder: Path, error: Exception) -> RayLLMError:
        # The engine's process sends only the text of its error.
        reason = one_line(error)
        if self._engine.errored:
            logger.error("The engine died while the adapter `%s` was loaded: %s", adapter_id, reason)
            return EngineError("The engine died.")
        if _BROKEN_ADAPTER.search(reason):
            logger.warning("vLLM refuses the adapter `%s`: %s", adapter_id, reason)
            text = reason.replace(str(folder), "its folder")[:300]
            message = f"The adapter `{adapter_id}` cannot be used: vLLM refuses it: {text}"
            return RequestError(message, "model", "adapter_broken")
        logger.error("The engine failed to load the adapter `%s`: %s", adapter_id, reason)
        message = f"The engine failed to load the adapter `{adapter_id}`; the server's log says why."
        return UnavailableError(message, "model", ADAPTER_UNAVAILABLE, 10)

    def serve_as(self, model: str, lora_request: Any) -> None:
        """Use the adapter for requests to the model name `model`."""
        self._models.lora_requests[model] = lora_request

    async def remove(self, lora_request: Any) -> None:
        """Unload the adapter from the engine and from the application, under all its names."""
        lora_requests = self._models.lora_requests
        for model in [
            model for model, request in lora_requests.items() if request.lora_int_id == lora_request.lora_int_id
        ]:
            del lora_requests[model]
        await self._engine.remove_lora(lora_request.lora_int_id)
