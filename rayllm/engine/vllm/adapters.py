"""LoRA adapters in vLLM's engine and application."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rayllm.core.errors import ADAPTER_UNAVAILABLE, EngineError, RayLLMError, RequestError, UnavailableError
from rayllm.engine.vllm.engine import kill_engine
from rayllm.engine.vllm.errors import one_line
from rayllm.lora import Adapter
from rayllm.lora.validation import CONFIG, WEIGHTS, holds_all_experts

logger = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]
ScalingOf = Callable[[str], tuple[int, float]]
"""Returns the rank of a module, and the factor on its lora_B."""

# The largest norm of a lora_A times the norm of its lora_B. Trained adapters are far below; broken ones have NaN, which
# stays in the KV cache and on a CPU reaches the replies to other requests.
_MAX_STRENGTH = 1e6


class _BrokenAdapterError(Exception):
    """An adapter's files are at fault."""


class EngineAdapters:
    """The adapters in a vLLM engine.

    Args:
        engine: vLLM's AsyncLLM.
        models: vLLM's OpenAIServingModels, which finds an adapter by the model name in a request.
    """

    def __init__(self, engine: Any, models: Any) -> None:
        self._engine = engine
        self._models = models

    async def add(self, adapter: Adapter, version: str, folder: Path) -> Any:
        """Load one version of an adapter; returns vLLM's LoRARequest.

        Raises:
            RequestError: the adapter's files are at fault.
            UnavailableError: the engine failed on the adapter, for want of memory for example.
            EngineError: the engine is dead.
        """
        from vllm.lora.request import LoRARequest

        request = LoRARequest(f"{adapter}@{version}", self._models.lora_id_counter.inc(1), str(folder))
        is_checked = False
        try:
            await self._check(folder)
            is_checked = True
            await self._engine.add_lora(request)
        except _BrokenAdapterError as error:
            logger.warning("The adapter `%s` is refused: %s", adapter, error)
            raise RequestError(f"The adapter `{adapter}` cannot be used: {error}", "model", "adapter_broken") from None
        except Exception as error:
            failure = self._failure(adapter, error)
            with suppress(Exception):
                # Some workers may have loaded it.
                await self._engine.remove_lora(request.lora_int_id)
            if is_checked and self._engine.vllm_config.parallel_config.world_size > 1:
                # vLLM leaves the replies of other workers unread, and would take them for those to later calls.
                kill_engine(self._engine)
            raise failure from None
        return request

    async def _check(self, folder: Path) -> None:
        """Refuse an adapter that the engine would refuse, or would apply only in part.

        The engine's process sends only the text of an error, so every fault of an adapter is found here.
        """
        config = self._engine.vllm_config.lora_config
        shapes = await asyncio.to_thread(_checked_shapes, folder, config)
        replies = await self._engine.collective_rpc("check_lora_tensors", args=(shapes,))
        check_replies(shapes, replies, config.target_modules)

    def _failure(self, adapter: Adapter, error: Exception) -> RayLLMError:
        reason = one_line(error)
        if self._engine.errored:
            logger.error("The engine died while the adapter `%s` was loaded: %s", adapter, reason)
            return EngineError("The engine died.")
        logger.error("The engine failed to load the adapter `%s`: %s", adapter, reason)
        message = f"The engine failed to load the adapter `{adapter}`; the server's log says why."
        return UnavailableError(message, "model", ADAPTER_UNAVAILABLE, 10)

    def serve_as(self, model: str, lora_request: Any) -> None:
        """Use the adapter for requests to the model name `model`."""
        self._models.lora_requests[model] = lora_request

    async def remove(self, lora_request: Any) -> None:
        """Unload the adapter from the engine and from the application, under all its names."""
        lora_requests = self._models.lora_requests
        for model, request in list(lora_requests.items()):
            if request.lora_int_id == lora_request.lora_int_id:
                del lora_requests[model]
        await self._engine.remove_lora(lora_request.lora_int_id)


def _checked_shapes(folder: Path, lora_config: Any) -> dict[str, list[int]]:
    """Check an adapter's files more strictly than vLLM's workers do; returns the shapes of the tensors by name.

    Raises:
        _BrokenAdapterError: vLLM refuses the files, or would scale the tensors otherwise than PEFT.
        OSError, MemoryError, RuntimeError: the files cannot be read now.
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
        # vLLM raises many types. The remaining cause is the files' content.
        reason = one_line(error).replace(str(folder), "its folder")[:300]
        raise _BrokenAdapterError(f"vLLM refuses it: {reason}") from None


def _scaling_of(helper: Any, config: Mapping[str, Any]) -> ScalingOf:
    if hasattr(helper, "get_rank_and_scaling"):
        return helper.get_rank_and_scaling  # type: ignore[no-any-return]
    for key in ("rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise _BrokenAdapterError(f"{CONFIG}: `{key}` is set, which needs vLLM 0.32 or newer.")
    return lambda module: (helper.r, helper.vllm_lora_scaling_factor)


def _checked_tensors(tensors: Iterable[tuple[str, Any]], scaling_of: ScalingOf) -> dict[str, list[int]]:
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

    Args:
        shapes: the tensors' shapes by name.
        replies: the workers' replies (see `lora_worker`).
        target_modules: the modules that the engine adapts; None for all.

    Raises:
        _BrokenAdapterError: a tensor is not.
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
