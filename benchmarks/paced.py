"""An engine that says a word each 20 ms and costs next to nothing, so that all that is measured is how it is served.

vLLM loads `install` in each process that makes an engine, as a plugin that only the servers of a benchmark find: it
replaces the engine's process and `AsyncLLM.generate`. Everything before and behind them is vLLM's own, for bare vLLM
and for whatever else builds on it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
WEIGHTS = ROOT / "models" / "rayllm-demo" / "weights"
MODEL = "paced"
PACE_S = 0.02
MAX_STREAMS = 4096
WORD, WORD_ID = " once", 1000
# Timers this close are one: a thousand streams need not wake the process a thousand times.
GRAIN_S = 0.001


class Pacer:
    """Wakes many streams at their times with one timer."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    async def until(self, when: float) -> None:
        """Wait for a time of the loop's clock; a stream that is late only lets others have their turn."""
        if when <= self._loop.time():
            await asyncio.sleep(0)
            return
        tick = math.ceil(when / GRAIN_S)
        waiting = self._waiting.get(tick)
        if waiting is None:
            waiting = self._waiting[tick] = []
            heapq.heappush(self._ticks, tick)
            if self._ticks[0] == tick:
                self._set_timer()
        future = self._loop.create_future()
        waiting.append(future)
        await future

    def _wake(self) -> None:
        now = self._loop.time()
        while self._ticks and self._ticks[0] * GRAIN_S <= now:
            for future in self._waiting.pop(heapq.heappop(self._ticks)):
                if not future.done():
                    future.set_result(None)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._ticks[0] * GRAIN_S, self._wake) if self._ticks else None


class PacedCore:
    """Stands where vLLM's client of its engine process stands, with as much of it as a server asks for."""

    engine_ranks_managed = (0,)
    resources = SimpleNamespace(engine_dead=False)

    async def get_output_async(self) -> None:
        """Outputs go another way: see `generate`."""
        await asyncio.get_running_loop().create_future()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def is_sleeping_async(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        """Caches that are to be reset and the like: there are none."""
        if not name.endswith("_async"):
            raise AttributeError(name)

        async def nothing(*_: Any, **__: Any) -> None:
            pass

        return nothing

    def shutdown(self, timeout: float | None = None) -> None:
        pass


async def generate(engine: Any, prompt: Any, sampling_params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
    """In place of `AsyncLLM.generate`: as many words as are asked for, at the pace.

    A request may ask for another pace with `vllm_xargs: {"pace_ms": …}`, which the first word does not wait for.
    """
    from vllm.sampling_params import RequestOutputKind

    pace = float((sampling_params.extra_args or {}).get("pace_ms", 1000 * PACE_S)) / 1000
    pacer = _pacer(engine)
    tokens = sampling_params.max_tokens
    start = asyncio.get_running_loop().time() + PACE_S
    if sampling_params.output_kind is RequestOutputKind.FINAL_ONLY:
        await pacer.until(start + (tokens - 1) * pace)
        yield _output(request_id, prompt, tokens, finished=True)
        return
    for number in range(tokens):
        await pacer.until(start + number * pace)
        yield _output(request_id, prompt, 1, finished=number == tokens - 1)


def _pacer(engine: Any) -> Pacer:
    if not hasattr(engine, "pacer"):
        # Not where the plugin is installed: no loop runs there.
        engine.pacer = Pacer()
    return engine.pacer  # type: ignore[no-any-return]


def _output(request_id: str, prompt: Any, tokens: int, finished: bool) -> Any:
    from vllm.outputs import CompletionOutput, RequestOutput

    reason = "length" if finished else None
    completion = CompletionOutput(0, WORD * tokens, [WORD_ID] * tokens, None, None, finish_reason=reason)
    return RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [completion], finished)


def install() -> None:
    """vLLM's entry point for plugins."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import EngineCoreClient

    EngineCoreClient.make_async_mp_client = staticmethod(lambda *_, **__: PacedCore())
    AsyncLLM.generate = generate


def write_model(folder: Path) -> Path:
    """The model's YAML: the demo's tokenizer and template with room for prompts of 100,000 tokens."""
    demo = yaml.safe_load((ROOT / "models" / "rayllm-demo.yaml").read_text())
    model = {
        "model_loading_config": {"model_id": MODEL, "model_source": str(WEIGHTS)},
        "generation_config": {"prompt_format": demo["generation_config"]["prompt_format"]},
        "max_request_context_length": 131072,
        # The most that its smallest batch of tokens allows; nobody looks at it here.
        "engine_kwargs": {**demo["engine_kwargs"], "max_num_seqs": 2048},
        "deployment_config": {"max_ongoing_requests": MAX_STREAMS},
        "runtime_env": {"env_vars": {**demo["runtime_env"]["env_vars"], "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
    }
    path = folder / "paced.yaml"
    path.write_text(yaml.safe_dump(model))
    return path


def variables(folder: Path) -> dict[str, str]:
    """The environment in which vLLM finds `install`: a folder that looks as if a package were installed there."""
    package = folder / "rayllm_paced-0.dist-info"
    package.mkdir(exist_ok=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: rayllm-paced\nVersion: 0\n")
    (package / "entry_points.txt").write_text("[vllm.general_plugins]\npaced = benchmarks.paced:install\n")
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}
