"""The logits processor that runs backends in vLLM's workers.

vLLM loads `rayllm.engine.guided.processor:GuidedProcessor` by its class path. An exception of a backend ends only the
sequence: it is logged, and reported to the replica (see `failure_reports`).

Limits: `set_custom_guided_decoding_parameters` runs in the replica, and here again for each sequence, without common
state. A backend must decide alike on every rank of tensor parallelism. Its time is part of every step of the whole
batch, and a backend that never returns blocks the engine.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextvars import Context
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from rayllm.engine.guided.backend import Backends
from rayllm.engine.guided.failure_reports import report
from rayllm.engine.guided.worker_messages import KEY, Envelope, WorkerEnvironment
from rayllm.engine.vllm import import_shims

logger = logging.getLogger(__name__)

_REQUESTS = {"chat": ChatCompletionRequest, "completion": CompletionRequest}
# Exceptions to expect of backends; KeyboardInterrupt belongs to the engine.
_FAULTS = (Exception, SystemExit, asyncio.CancelledError)

Processor = Callable[[list[int], torch.Tensor], torch.Tensor | None]


class GuidedProcessor(AdapterLogitsProcessor):  # type: ignore[misc]
    """vLLM's logits processor of a worker; `_Sequence` is one sequence of a batch."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        environment = WorkerEnvironment.read(os.environ)
        import_shims.install()
        self._backends = Backends.load(environment.folder, None, environment.cache)
        self._address = environment.report
        self._tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        # A single loop, since a backend may keep objects bound to it; the thread's own loop is left alone.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def is_argmax_invariant(self) -> bool:
        """A backend may change which token is the most likely."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> _Sequence | None:
        """The processor of a new sequence; None without a guided request or a constraint."""
        packed = (params.extra_args or {}).get(KEY)
        if packed is None:
            return None
        sequence = _Sequence(self.make, self._address, self._end_of(params))
        return sequence if sequence.open(packed) else None

    def make(self, envelope: Envelope) -> Processor | None:
        """Make a backend's processor for one sequence, in its own context; None for no constraint."""
        backend = self._backends.by_name[envelope.backend]
        # Parsed again each time, so that a backend that changes the request does not see its own changes.
        request = _REQUESTS[envelope.type].model_validate(envelope.request)
        context = Context()

        async def prepare_and_make() -> Any:
            await backend.prepare(request)
            return await backend.logits_processor(request, self._tokenizer)

        made = self._runner.run(prepare_and_make(), context=context)
        if made is None:
            return None
        if not callable(made):
            raise TypeError(f"a logits processor must be callable, and {type(made).__name__} is not")

        def processor(output_ids: list[int], scores: torch.Tensor) -> torch.Tensor | None:
            with backend.isolation:
                return context.run(made, output_ids, scores)

        return processor

    def _end_of(self, params: SamplingParams) -> int | None:
        candidates = [
            params.eos_token_id,
            *sorted(params.all_stop_token_ids),
            getattr(self._tokenizer, "eos_token_id", None),
        ]
        return next((token for token in candidates if token is not None), None)


class _Sequence:
    """A sequence, which vLLM calls with the tokens so far and a row of logits. vLLM may repeat or skip steps.

    vLLM discards some results (chunked prefill), and adds preempted requests again. A backend's processor that counts
    its calls must see each position once: at an unexpected position, a new processor is created and replayed over the
    tokens so far, with zeros as logits.
    """

    def __init__(self, make: Callable[[Envelope], Processor | None], address: str, end: int | None) -> None:
        self._make = make
        self._address = address
        self._end = end
        self._envelope = Envelope("", "", {}, "")
        self._processor: Processor | None = None
        self._position = 0
        self._failed = False

    def open(self, packed: str) -> bool:
        """Make the processor. Returns whether the sequence is constrained, as it is after a failure: it must end."""
        try:
            self._envelope = Envelope.unpack(packed)
            self._processor = self._make(self._envelope)
        except _FAULTS:
            self._fail("it made a logits processor")
        return self._failed or self._processor is not None

    def __call__(self, output_ids: list[int], scores: torch.Tensor) -> torch.Tensor:
        """Constrain `scores`, of shape (vocabulary,), in place; `output_ids` are the tokens after the prompt."""
        if not self._failed:
            try:
                self._step(list(output_ids), scores)
            except _FAULTS:
                self._fail("its logits processor ran")
        if self._failed and self._end is not None:
            scores.fill_(float("-inf"))
            scores[self._end] = 0.0
        return scores

    def _step(self, output_ids: list[int], scores: torch.Tensor) -> None:
        if len(output_ids) != self._position:
            self._replay(output_ids, scores)
        self._apply(output_ids, scores)
        self._position += 1

    def _replay(self, output_ids: list[int], scores: torch.Tensor) -> None:
        if self._position:
            self._processor = self._make(self._envelope)
        for self._position in range(len(output_ids)):
            self._apply(output_ids[: self._position], torch.zeros_like(scores))
        self._position = len(output_ids)

    def _apply(self, output_ids: list[int], scores: torch.Tensor) -> None:
        if self._processor is None:
            return
        changed = self._processor(output_ids, scores)
        if changed is not None and changed is not scores:
            if changed.shape != scores.shape:
                raise ValueError(f"a logits processor gave {tuple(changed.shape)} scores for {tuple(scores.shape)}")
            scores.copy_(changed)

    def _fail(self, stage: str) -> None:
        logger.exception("A guided decoding backend failed while %s; its request ends.", stage)
        self._failed = True
        self._processor = None
        report(self._address, self._envelope.ticket, stage)
