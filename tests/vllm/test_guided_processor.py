"""The worker's side of guided decoding, with vLLM's own classes and a real tokenizer, but without an engine."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rayllm.core.errors import ConfigError
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.guided import PROCESSOR
from rayllm.engine.guided.backend import Backends
from rayllm.engine.guided.failure_reports import Failures
from rayllm.engine.guided.serving_hooks import guide_calls
from rayllm.engine.guided.worker_messages import WorkerEnvironment
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.engine import SECOND_RUNNER, choose_runner

HAS_PROCESSORS = importlib.util.find_spec("vllm.v1.worker.gpu.sample.logits_processor") is not None
WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"

# The example of NVIDIA NIM's page "Custom Guided Decoding Backend (Experimental)", to the letter.
EXAMPLE = (Path(__file__).parents[1] / "integration" / "backends" / "page-example" / "backend.py").read_text()

COUNTING = """
from contextvars import ContextVar
import torch

state = ContextVar("state")
CALLS = []

async def set_custom_guided_decoding_parameters(request):
    state.set([request.seed, 0])

async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    if request.seed == 0:
        return None
    def process(output_ids, scores):
        seed, count = state.get()
        CALLS.append((seed, count, list(output_ids)))
        state.get()[1] += 1
        output_ids.append(99)
        changed = torch.full_like(scores, float("-inf"))
        changed[seed + count] = 0.0
        return changed
    return process
"""

RAISING = """
import torch

async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    if request.seed == 1:
        raise ValueError("while it is made")
    if request.seed == 2:
        return "no processor"
    def process(output_ids, scores):
        if request.seed == 3:
            raise ValueError("at once")
        if request.seed == 4:
            return torch.zeros(3)
        if request.seed == 5 and len(output_ids) == 2:
            raise SystemExit
        scores.fill_(float("-inf"))
        scores[7] = 0.0
        return scores
    return process
"""

Told = list[tuple[str, str]]


@pytest.fixture(scope="module")
def backends_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backends")
    for name, text in {"my-custom-backend": EXAMPLE, "counting": COUNTING, "raising": RAISING}.items():
        (folder / name).mkdir()
        (folder / name / "backend.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def worker(backends_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """vLLM's logits processor as its worker makes it: by class path, with the variables of the replica."""
    from vllm.config import ModelConfig
    from vllm.v1.sample.logits_processor import _load_logitsprocs_by_fqcns

    environment = WorkerEnvironment(backends_folder, tmp_path_factory.mktemp("cache"), "127.0.0.1:1")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.variables({}).items():
            patch.setenv(name, value)
        (kind,) = _load_logitsprocs_by_fqcns([PROCESSOR])
        return kind(SimpleNamespace(model_config=ModelConfig(model=str(WEIGHTS))), "cpu", False)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the worker reports, each with its ticket."""
    found: Told = []
    processor = importlib.import_module("rayllm.engine.guided.processor")
    monkeypatch.setattr(processor, "report", lambda _, ticket, fault: found.append((ticket, fault)))
    return found


class Batch:
    """vLLM's batch as far as logits processors see it: rows, and the tokens of each."""

    def __init__(self, worker: Any, width: int = 3000) -> None:
        self.worker = worker
        self.width = width
        self.tokens: dict[int, list[int]] = {}

    def update(self, **changes: Any) -> None:
        from vllm.v1.sample.logits_processor import BatchUpdate

        self.worker.update_state(BatchUpdate(8, **{"removed": [], "added": [], "moved": [], **changes}))

    def add(self, row: int, backend: str | None, tokens: list[int] | None = None, **fields: Any) -> None:
        self.tokens[row] = list(tokens or [])
        self.update(added=[(row, parameters(backend, **fields), [1, 2, 3], self.tokens[row])])

    def logits(self) -> Any:
        import torch

        with torch.inference_mode():
            return self.worker.apply(torch.randn(8, self.width))

    def step(self, *rows: int) -> None:
        """One step whose tokens are taken for `rows`, and thrown away for the others."""
        chosen = self.logits().argmax(dim=-1).tolist()
        for row in rows:
            self.tokens[row].append(chosen[row])


def parameters(backend: str | None, **fields: Any) -> Any:
    """The sampling parameters of a completion with `fields`, as the replica makes them."""
    from vllm import SamplingParams

    from rayllm.engine.guided.worker_messages import KEY, Envelope

    if backend is None:
        return SamplingParams()
    packed = Envelope(backend, "completion", {"prompt": "x", "model": "m", **fields}, f"ticket of {backend}").pack()
    return SamplingParams(extra_args={KEY: packed})


@pytest.fixture
def batch(worker: Any) -> Any:
    yield Batch(worker)
    worker.req_info.clear()


def test_the_pages_example_runs_unmodified(worker: Any, batch: Batch) -> None:
    tokenizer = worker._tokenizer
    batch.add(0, "my-custom-backend")
    batch.add(5, None)
    while batch.tokens[0][-1:] != [tokenizer.eos_token_id]:
        batch.step(0, 5)
    assert tokenizer.decode(batch.tokens[0], skip_special_tokens=True) == "Custom decoding test"


def test_repeated_and_put_off_steps_do_not_run_the_state_ahead(worker: Any, batch: Batch) -> None:
    batch.add(1, "my-custom-backend")
    # The prompt in parts: results are thrown away.
    batch.step()
    batch.step()
    batch.step(1)
    batch.step(1)
    # Preempted, and added again elsewhere with what it has; then moved.
    batch.update(removed=[1])
    batch.add(2, "my-custom-backend", batch.tokens[1])
    batch.step()
    from vllm.v1.sample.logits_processor import MoveDirectionality

    batch.update(moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL)])
    batch.tokens[0] = batch.tokens[2]
    while batch.tokens[0][-1:] != [worker._tokenizer.eos_token_id]:
        batch.step(0)
    assert worker._tokenizer.decode(batch.tokens[0], skip_special_tokens=True) == "Custom decoding test"


def test_sequences_have_states_and_contexts_of_their_own(worker: Any, batch: Batch) -> None:
    # Rows 0 and 1 are the children of one request: they share its parameters.
    for row, seed in ((0, 10), (1, 10), (2, 20), (3, 0)):
        batch.add(row, "counting", seed=seed)
    batch.step(0, 1, 2)
    batch.step(0, 1, 2)
    batch.step(1, 2)
    assert batch.tokens == {0: [10, 11], 1: [10, 11, 12], 2: [20, 21, 22], 3: []}
    assert 3 not in worker.req_info


def test_each_position_is_seen_once_by_a_processor(worker: Any, batch: Batch) -> None:
    calls = worker._backends.by_name["counting"].module.CALLS
    calls.clear()
    batch.add(0, "counting", [5, 6], seed=1)
    batch.step(0)
    batch.step()
    batch.step(0)
    expected = [(1, 0, []), (1, 1, [5]), (1, 2, [5, 6])]
    assert calls == [*expected, (1, 3, [5, 6, 3]), *expected, (1, 3, [5, 6, 3])]


@pytest.mark.parametrize(
    ("seed", "steps", "stage"),
    [
        (1, 0, "it made a logits processor"),
        (2, 0, "it made a logits processor"),
        (3, 0, "its logits processor ran"),
        (4, 0, "its logits processor ran"),
        (5, 2, "its logits processor ran"),
    ],
)
def test_a_backend_that_fails_ends_its_own_sequence_and_is_reported_once(
    worker: Any, batch: Batch, reported: Told, caplog: pytest.LogCaptureFixture, seed: int, steps: int, stage: str
) -> None:
    end = worker._tokenizer.eos_token_id
    batch.add(0, "raising", seed=seed)
    batch.add(1, "counting", seed=10)
    for _ in range(steps + 2):
        batch.step(0, 1)
    assert batch.tokens[0] == [7] * steps + [end, end]
    assert batch.tokens[1] == list(range(10, 12 + steps))
    assert reported == [("ticket of raising", stage)]
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("packed", ["", "{", "[]", '{"backend": "counting"}', 7])
def test_a_forged_envelope_ends_its_sequence_only(worker: Any, batch: Batch, reported: Told, packed: Any) -> None:
    from vllm import SamplingParams

    batch.update(added=[(0, SamplingParams(extra_args={"rayllm_guided": packed}), [1], [])])
    assert batch.logits()[0].argmax() == worker._tokenizer.eos_token_id
    assert len(reported) == 1


def test_an_unknown_backend_or_kind_ends_the_sequence(worker: Any, batch: Batch, reported: Told) -> None:
    batch.add(0, "nobody")
    batch.add(1, "counting", prompt=["wrong", {"kind": 1}])
    assert set(batch.logits()[:2].argmax(dim=-1).tolist()) == {worker._tokenizer.eos_token_id}
    assert {ticket for ticket, _ in reported} == {"ticket of nobody", "ticket of counting"}


def test_moved_paths_resolve_and_missing_ones_are_named(worker: Any) -> None:
    protocol = importlib.import_module("vllm.entrypoints.openai.protocol")
    names = (
        "ChatCompletionRequest CompletionRequest ChatCompletionResponse CompletionResponse ErrorResponse UsageInfo "
        "ChatCompletionStreamResponse CompletionStreamResponse DeltaMessage ChatMessage ErrorInfo StreamOptions "
        "ToolCall FunctionCall DeltaToolCall ResponseFormat ModelCard ModelList RequestResponseMetadata "
        "ChatCompletionToolsParam ResponsesRequest TokenizeRequest DetokenizeRequest LoadLoRAAdapterRequest "
        "EmbeddingRequest ScoreRequest RerankRequest TranscriptionRequest ChatCompletionLogProbs CompletionLogProbs"
    )
    assert [name for name in names.split() if not hasattr(protocol, name)] == []
    with pytest.raises(ImportError, match="Nothing"):
        exec("from vllm.entrypoints.openai.protocol import Nothing", {})
    from vllm.sampling_params import LogitsProcessor

    assert LogitsProcessor


def test_a_module_that_exists_is_left_alone(worker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    package = importlib.import_module("vllm.entrypoints.openai")
    (tmp_path / "protocol.py").write_text("ITS_OWN = True\n")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "vllm.entrypoints.openai.protocol", raising=False)
    before = list(sys.meta_path)
    from rayllm.engine.vllm import import_shims

    import_shims.install()
    assert sys.meta_path == before
    assert importlib.import_module("vllm.entrypoints.openai.protocol").ITS_OWN
    monkeypatch.delitem(sys.modules, "vllm.entrypoints.openai.protocol")


def test_vllm_has_the_calls_that_are_wrapped() -> None:
    chat = "vllm.entrypoints.openai.chat_completion"
    calls = {
        f"{chat}.serving": "OpenAIServingChat.create_chat_completion",
        f"{chat}.batch_serving": "OpenAIServingChatBatch.create_batch_chat_completion",
        "vllm.entrypoints.openai.completion.serving": "OpenAIServingCompletion.create_completion",
        "vllm.entrypoints.openai.responses.serving": "OpenAIServingResponses.create_responses",
        "vllm.entrypoints.anthropic.serving": "AnthropicServingMessages.create_messages",
    }
    for module, name in calls.items():
        kind, method = name.split(".")
        found = getattr(importlib.import_module(module), kind)
        assert list(inspect.signature(getattr(found, method)).parameters)[1:] == ["request", "raw_request"]
        assert hasattr(found, "create_error_response")


CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "ä"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "12"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "response_format": {"type": "text"},
    "logit_bias": {"5": 1.0},
    "stop": ["a"],
    "seed": 10,
    "nvext": {"guided_decoding_backend": "counting", "more": [1]},
}


class Serving:
    """vLLM's serving object with an engine of one step: it runs the worker on what the request became."""

    def __init__(self, worker: Any) -> None:
        self.create_error_response = moved_names.load("create_error_response")
        self.worker = worker
        self.request: Any = None

    async def create_chat_completion(self, request: Any, raw_request: Any = None) -> Any:
        self.request = request
        return self.events() if request.stream else await asyncio.to_thread(self.step)

    def step(self) -> Any:
        import torch

        sequence = self.worker.new_req_logits_processor(self.request.to_sampling_params(16, {}))
        return sequence([], torch.zeros(3000)).argmax().item()

    async def events(self) -> Any:
        yield f"data: {await asyncio.to_thread(self.step)}\n\n"


async def ask(worker: Any, folder: Path, **fields: Any) -> tuple[Any, Serving]:
    """What the replica answers to `CHAT` with `fields`; the worker's reports travel as in a real replica."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    failures, serving = Failures(), Serving(worker)
    await failures.listen()
    worker._address = failures.address
    state = SimpleNamespace(openai_serving_chat=serving, openai_serving_completion=None)
    guide_calls(state, Backends.load(folder, "counting", folder / "_cache"), failures)
    result = await serving.create_chat_completion(ChatCompletionRequest.model_validate({**CHAT, **fields}))
    if hasattr(result, "__aiter__"):
        result = [event async for event in result]
    await failures.close()
    return result, serving


async def test_a_chat_request_reaches_the_worker_whole(
    worker: Any, backends_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    module: ModuleType = worker._backends.by_name["counting"].module
    original: Callable[..., Any] = worker._backends.by_name["counting"].prepare_with

    async def prepare(request: Any) -> None:
        seen.append(request)
        await original(request)

    backend = worker._backends.by_name["counting"]
    replaced = {**worker._backends.by_name, "counting": type(backend)(**{**vars(backend), "prepare_with": prepare})}
    monkeypatch.setattr(worker, "_backends", Backends(replaced))
    result, serving = await ask(worker, backends_folder)
    assert result == 10
    (request,) = seen
    wanted = serving.request.model_dump(mode="json", exclude={"vllm_xargs"})
    assert request.model_dump(mode="json", exclude={"vllm_xargs"}) == wanted
    assert wanted["messages"][2]["tool_calls"][0]["function"]["name"] == "f"
    assert request.nvext == CHAT["nvext"]
    assert module.CALLS[-1] == (10, 0, [])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_in_the_worker_is_the_clients_error(
    worker: Any, backends_folder: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    fields = {"seed": 3, "stream": stream, "nvext": {"guided_decoding_backend": "raising"}}
    result, _ = await ask(worker, backends_folder, **fields)
    said = "The guided decoding backend `raising` failed while its logits processor ran; the server's log says why."
    if not stream:
        assert (result.error.code, result.error.message) == (500, said)
        return
    error, done = result
    assert error.startswith('data: {"error": {"message": "' + said)
    assert done == "data: [DONE]\n\n"


async def test_an_unknown_backend_is_a_400_of_vllm(worker: Any, backends_folder: Path) -> None:
    result, serving = await ask(worker, backends_folder, nvext={"guided_decoding_backend": "x"})
    assert (result.error.code, result.error.param) == (400, "nvext.guided_decoding_backend")
    assert "`counting`, `my-custom-backend`, `raising`" in result.error.message
    assert serving.request is None


@pytest.mark.skipif(not HAS_PROCESSORS, reason="before vLLM 0.32, the first runner has all logits processors")
@pytest.mark.parametrize(
    ("path", "runner"),
    [
        (PROCESSOR, "0"),
        ("vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor", None),
    ],
)
def test_the_runner_follows_from_the_logits_processors(
    path: str, runner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECOND_RUNNER, raising=False)
    choose_runner(VllmArguments({"logits_processors": [path]}, {}))
    assert os.environ.pop(SECOND_RUNNER, None) == runner


@pytest.mark.skipif(not HAS_PROCESSORS, reason="before vLLM 0.32, the first runner has all logits processors")
def test_a_logits_processor_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"engine_kwargs\.logits_processors: `nowhere:Missing`"):
        choose_runner(VllmArguments({"logits_processors": ["nowhere:Missing"]}, {}))
