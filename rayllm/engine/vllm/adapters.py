"""LoRA adapters in vLLM's engine and application."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from rayllm.engine.vllm.errors import one_line
from rayllm.errors import ADAPTER_UNAVAILABLE, EngineError, RayLLMError, RequestError, UnavailableError

logger = logging.getLogger(__name__)


# What vLLM, PyTorch and safetensors say where an adapter's files are at fault; all else is the engine's own failure.
_BROKEN_ADAPTER = re.compile(
    r"LoRA rank|[Mm]issing required configuration|modules_to_save|DoRA|[Aa]dapter bias|target modules in"
    r"|unsupported LoRA weight|LoRA weight name|doesn't contain tensors|vocabulary size|LoRA-B output dim"
    r"|size of tensor|size mismatch|shape mismatch|deserializing header|SafetensorError|JSONDecodeError|Expecting value"
)


class AdapterSlots:
    """The adapters of an engine, as vLLM's application finds them: by the name of the model that a request asks for.

    Args:
        engine: an AsyncLLM.
        models: the application's `OpenAIServingModels`.
    """

    def __init__(self, engine: Any, models: Any) -> None:
        self._engine = engine
        self._models = models

    async def add(self, name: str, key: str, folder: Path) -> Any:
        """Load the adapter `name`, which lies in `folder`, as `key`; returns vLLM's LoRARequest.

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
            raise self._fault(name, folder, error) from None
        return request

    def _fault(self, name: str, folder: Path, error: Exception) -> RayLLMError:
        # The engine's process sends the text of its error and nothing else.
        reason = one_line(error)
        if self._engine.errored:
            logger.error("The engine died while the adapter `%s` was loaded: %s", name, reason)
            return EngineError("The engine died.")
        if _BROKEN_ADAPTER.search(reason):
            logger.warning("vLLM refuses the adapter `%s`: %s", name, reason)
            said = reason.replace(str(folder), "its folder")[:300]
            message = f"The adapter `{name}` cannot be used: vLLM refuses it: {said}"
            return RequestError(message, "model", "adapter_broken")
        logger.error("The engine failed to load the adapter `%s`: %s", name, reason)
        message = f"The engine failed to load the adapter `{name}`; the server's log says why."
        return UnavailableError(message, "model", ADAPTER_UNAVAILABLE, 10)

    def answer_to(self, name: str, loaded: Any) -> None:
        """Let requests for the model `name` use the adapter."""
        self._models.lora_requests[name] = loaded

    async def remove(self, loaded: Any) -> None:
        """Take the adapter out of the engine, and out of the application under all its names."""
        known = self._models.lora_requests
        for name in [name for name, request in known.items() if request.lora_int_id == loaded.lora_int_id]:
            del known[name]
        await self._engine.remove_lora(loaded.lora_int_id)
