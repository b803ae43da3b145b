"""LoRA adapters in vLLM's engine and application."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rayllm.core.errors import ADAPTER_UNAVAILABLE, EngineError, RayLLMError, RequestError, UnavailableError
from rayllm.engine.vllm.errors import one_line
from rayllm.lora.validation import CONFIG, WEIGHTS, holds_all_experts

logger = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]
ScalingOf = Callable[[str], tuple[int, float]]
"""Returns the rank of a module, and by what its lora_B is multiplied."""


# The largest norm of a lora_A times that of its lora_B. Those of trained ones are far below, of broken ones NaN, which
# stays in the KV cache and on a CPU reaches the answers to others.
_MAX_STRENGTH = 1e6


class _BrokenAdapterError(Exception):
    """An adapter's files are at fault."""


class AdapterSlots:
    """The adapters in an AsyncLLM and its application, whose `models` finds them by the model name in a request."""

    def __init__(self, engine: Any, models: Any) -> None:
        self._engine = engine
        self._models = models

    async def add(self, adapter_id: str, key: str, folder: Path) -> Any:
        """Load an adapter, which messages call `adapter_id` and the engine `key`; returns vLLM's LoRARequest.

        Raises:
            RequestError: its files are at fault.
            UnavailableError: the engine failed on it, for want of memory for example.
            EngineError: the engine is dead.
        """
        from vllm.lora.request import LoRARequest

        request = LoRARequest(key, self._models.lora_id_counter.inc(1), str(folder))
        try:
            await self._check(folder)
            await self._engine.add_lora(request)
        except _BrokenAdapterError as error:
            logger.warning("The adapter `%s` is refused: %s", adapter_id, error)
            raise RequestError(
                f"The adapter `{adapter_id}` cannot be used: {error}", "model", "adapter_broken"
            ) from None
        except Exception as error:
            with suppress(Exception):
                # Some workers may have loaded it.
                await self._engine.remove_lora(request.lora_int_id)
            raise self._failure(adapter_id, error) from None
        return request

    async def _check(self, folder: Path) -> None:
        """Refuse an adapter that the engine would refuse, or would apply only in part.

        The engine's process sends only the text of an error. So whatever an adapter can do wrong is found before it.
        """
        config = self._engine.vllm_config.lora_config
        shapes = await asyncio.to_thread(_checked_shapes, folder, config)
        replies = await self._engine.collective_rpc("check_lora_tensors", args=(shapes,))
        check_replies(shapes, replies, config.target_modules)

    def _failure(self, adapter_id: str, error: Exception) -> RayLLMError:
        reason = one_line(error)
        if self._engine.errored:
            logger.error("The engine died while the adapter `%s` was loaded: %s", adapter_id, reason)
            return EngineError("The engine died.")
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


def _checked_shapes(folder: Path, lora_config: Any) -> dict[str, list[int]]:
    """Check an adapter's files as vLLM's workers do, and what they do not; the shapes of its tensors, by name.

    Raises:
        _BrokenAdapterError: vLLM refuses them, or would scale what is in them otherwise than PEFT.
        OSError, MemoryError, RuntimeError: they cannot be read now.
    """
    from safetensors import safe_open
    from vllm.lora.peft_helper import PEFTHelper

    try:
        helper = PEFTHelper.from_local_dir(str(folder), None)
        helper.validate_legal(lora_config)
        scaling_of = _scaling_of(helper, json.loads((folder / CONFIG).read_text()))
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            names = file.keys()
            tensors = ((name, file.get_tensor(name).to(lora_config.lora_dtype)) for name in names)
            return _checked_tensors(tensors, scaling_of)
    except (_BrokenAdapterError, OSError, MemoryError, RuntimeError):
        # PyTorch raises the last for want of memory.
        raise
    except Exception as error:
        # Of many types; what is left to be at fault is what the files say.
        reason = one_line(error).replace(str(folder), "its folder")[:300]
        raise _BrokenAdapterError(f"vLLM refuses it: {reason}") from None


def _scaling_of(helper: Any, config: Mapping[str, Any]) -> ScalingOf:
    """A function that returns the rank and the scaling that vLLM uses for a module."""
    if hasattr(helper, "get_rank_and_scaling"):
        return helper.get_rank_and_scaling  # type: ignore[no-any-return]
    for key in ("rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise _BrokenAdapterError(f"{CONFIG}: `{key}` is set, which needs vLLM 0.32 or newer.")
    return lambda module: (helper.r, helper.vllm_lora_scaling_factor)


def _checked_tensors(tensors: Iterable[tuple[str, Any]], scaling_of: ScalingOf) -> dict[str, list[int]]:
    """Check the ranks and the values of an adapter's tensors; their shapes, by name."""
    from vllm.lora.utils import is_base_embedding_weights, parse_fine_tuned_lora_name

    shapes = {}
    strengths: dict[str, float] = {}
    for name, tensor in tensors:
        shapes[name] = list(tensor.shape)
        if is_base_embedding_weights(name):
            continue
        module, is_a = parse_fine_tuned_lora_name(name)
        rank, scaling = scaling_of(module)
        if is_a and tensor.shape[0] != rank and not holds_all_experts(module):
            raise _BrokenAdapterError(f"{WEIGHTS}: `{name}` has rank {tensor.shape[0]}, but {CONFIG} says {rank}.")
        norm = float((tensor if is_a else tensor * scaling).float().norm())
        strengths[module] = strengths.get(module, 1.0) * norm
    for module, strength in strengths.items():
        # Written so that it holds for NaN as well.
        if not strength <= _MAX_STRENGTH:
            raise _BrokenAdapterError(
                f"{WEIGHTS}: `{module}` has, once it is scaled, a norm of {strength:g}: the model would overflow."
            )
    return shapes


def check_replies(
    shapes: Shapes, replies: Sequence[Mapping[str, Any]], target_modules: Sequence[str] | None = None
) -> None:
    """Refuse an adapter unless each of its tensors is applied by some worker, or skipped by all on purpose.

    `replies` are the workers' (see `lora_worker`); `target_modules` are those that the engine is confined to, None is
    all.

    Raises:
        _BrokenAdapterError: one is not.
    """
    applied: dict[str, int] = {}
    skipped: set[str] = set()
    for reply in replies:
        applied |= reply["applied"]
        skipped |= set(reply["skipped"])
    for name, shape in shapes.items():
        if name not in applied and name not in skipped:
            examples = {kind: module for reply in replies for kind, module in reply["examples"].items()}
            raise _BrokenAdapterError(_unapplied(name, examples, target_modules))
        if size := applied.get(name):
            raise _BrokenAdapterError(
                f"{WEIGHTS}: `{name}` has the shape {tuple(shape)}, and this model has {size} features there; it was "
                "made for another base model."
            )
    if not applied:
        raise _BrokenAdapterError(f"{WEIGHTS}: vLLM skips all its tensors, such as `{next(iter(shapes))}`.")
    if missing := next(filter(None, (reply["missing"] for reply in replies)), ""):
        raise _BrokenAdapterError(f"{WEIGHTS} lacks `{missing}`: vLLM adapts all experts of a layer, or none.")


def _unapplied(name: str, examples: Mapping[str, str], target_modules: Sequence[str] | None) -> str:
    kind = name.partition(".lora_")[0].rpartition(".")[2]
    example = examples.get(kind) or next(iter(examples.values()), "none")
    only = f" (engine_kwargs.lora_target_modules: {', '.join(target_modules)})" if target_modules else ""
    return (
        f"{WEIGHTS}: `{name}` would not be applied. The modules of this model that take adapters{only} have names such "
        f"as `{example}`."
    )
