"""What the front admits, vLLM's second model runner admits.

Real are vLLM's request, its input processor with the demo's tokenizer, and the runner's states with all their checks.
Only the memory of their buffers is that of the CPU, and no kernel runs.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

from rayllm.core.endpoints import COMPLETIONS
from rayllm.core.errors import RequestError
from rayllm.engine.middleware.request_limits import check_limits
from rayllm.engine.vllm.errors import client_errors
from rayllm.engine.vllm.per_request import stop_at
from rayllm.engine.vllm.sampling_limits import SamplingLimits, limit_sampling, sampling_limits

DEMO = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
PROMPT = {"prompt_token_ids": [5, 6, 7, 8]}
ROOM = 64
# Since vLLM 0.30.
UVA_IS_METHOD = hasattr(buffer_utils.UvaBuffer, "uva")
# As in a model's file, beside the EOS of the demo itself.
MODEL_STOPS = (11, 12, 13, 14, 15)
ADAPTER_STOPS: ContextVar[tuple[int, ...]] = ContextVar("adapter_stops", default=())


@pytest.fixture(scope="module")
def processor() -> Any:
    """The input processor of an engine of the demo, as RayLLM changes it."""
    config = AsyncEngineArgs(model=str(DEMO), dtype="float32", max_model_len=ROOM + 4).create_engine_config()
    engine = SimpleNamespace(input_processor=InputProcessor(config))
    stop_at(engine, lambda: (*MODEL_STOPS, *ADAPTER_STOPS.get()))
    limit_sampling(engine)
    return engine.input_processor


def process(processor: Any, **fields: Any) -> Any:
    """The request that the engine gets of a client's."""
    request = CompletionRequest(model="demo", prompt="x", **fields)
    params = request.to_sampling_params(ROOM, {})
    return processor.process_inputs("id", PROMPT, params, ("generate",))


class PlainBuffer:
    """Memory of the CPU in place of memory that a GPU sees as well."""

    def __init__(self, size: Any, dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self.uva: Any = (lambda n=None: self.cpu[:n]) if UVA_IS_METHOD else self.cpu


class Runner:
    """The part of vLLM's second model runner that takes in a request.

    Args:
        processor: the input processor of the engine.
    """

    def __init__(self, processor: Any) -> None:
        config = processor.vllm_config
        given = {
            "vllm_config": config,
            "max_num_reqs": 4,
            "max_model_len": config.model_config.max_model_len,
            "max_num_batched_tokens": 64,
            "num_speculative_steps": 0,
            "vocab_size": config.model_config.get_vocab_size(),
            "device": torch.device("cpu"),
        }
        self._states = call(RequestState, **given)
        self._sampler = call(Sampler, req_states=self._states, **given)
        self._prompt_logprobs = call(PromptLogprobsWorker, **given)

    def take(self, request: Any) -> None:
        """Take in a request, one answer after the other, as the worker does."""
        request.external_req_id = "id"
        parent, count = ParentRequest(request), request.sampling_params.n
        for name, params in (parent.get_child_info(index) for index in range(count)):
            prompt = request.prompt_token_ids
            self._states.add_request(name, len(prompt), prompt, 0, params.max_tokens)
            index = self._states.req_id_to_index[name]
            try:
                call(self._sampler.add_request, req_idx=index, prompt_len=len(prompt), sampling_params=params)
                self._prompt_logprobs.add_request(name, index, params)
            finally:
                self._states.remove_request(name)


def call(function: Any, **given: Any) -> Any:
    """Call a function with those of the arguments that it has in this version of vLLM."""
    return function(**{name: given[name] for name in inspect.signature(function).parameters if name in given})


@pytest.fixture
def runner(processor: Any, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(buffer_utils, "UvaBuffer", PlainBuffer)
    monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: True)
    return Runner(processor)


def ids(count: int) -> list[int]:
    return list(range(100, 100 + count))


def bias(count: int) -> dict[str, float]:
    return dict.fromkeys(map(str, ids(count)), 1.0)


def test_the_limits_are_the_runners() -> None:
    assert sampling_limits() == SamplingLimits(1024, 1024, 128, 128, 1024)


# The model's stops and the tokenizer's EOS.
OWN = len(MODEL_STOPS) + 1
SEED = 2**63 - 1


@pytest.mark.parametrize(
    ("field", "most", "too_many"),
    [
        ("allowed_token_ids", {"allowed_token_ids": ids(1024)}, {"allowed_token_ids": ids(1025)}),
        ("logit_bias", {"logit_bias": bias(1024)}, {"logit_bias": bias(1025)}),
        ("stop_token_ids", {"stop_token_ids": ids(128 - OWN)}, {"stop_token_ids": ids(129 - OWN)}),
        (
            "bad_words",
            {"bad_words": [f"({word}" for word in range(128)]},
            {"bad_words": [f"({word}" for word in range(129)]},
        ),
        ("bad_words", {"bad_words": ["(" * 1024]}, {"bad_words": ["(" * 1025]}),
        ("seed", {"seed": SEED - 2, "n": 3}, {"seed": SEED - 1, "n": 3}),
        ("seed", {"seed": SEED}, {"seed": SEED, "n": 2}),
    ],
)
def test_the_runner_takes_what_is_admitted_and_no_more(
    processor: Any, runner: Runner, field: str, most: dict[str, Any], too_many: dict[str, Any]
) -> None:
    more = {"min_tokens": 1, "temperature": 1}
    runner.take(process(processor, **most, **more))
    with pytest.raises(VLLMValidationError, match=field.replace("_", ".")) as refused:
        process(processor, **too_many, **more)
    assert refused.value.parameter == field


def test_without_min_tokens_any_number_of_tokens_may_stop(processor: Any, runner: Runner) -> None:
    runner.take(process(processor, stop_token_ids=ids(2000)))


async def test_an_adapters_stops_count_wherever_vllm_processes_the_request(processor: Any) -> None:
    request = CompletionRequest(model="demo", prompt="x", min_tokens=1)
    params = request.to_sampling_params(ROOM, {})
    process_inputs = getattr(processor, "process_inputs_async", None)
    if process_inputs is None:
        pytest.skip("this version of vLLM has one way only")
    ADAPTER_STOPS.set(tuple(ids(20)))
    processed = await process_inputs("id", PROMPT, params, ("generate",))
    assert processed.sampling_params.all_stop_token_ids >= {*MODEL_STOPS, *ids(20)}
    ADAPTER_STOPS.set(tuple(ids(200)))
    with pytest.raises(VLLMValidationError, match="has 206 entries, including the model's"):
        await process_inputs("id", PROMPT, params, ("generate",))


def around(*limits: int) -> st.SearchStrategy[int]:
    """Counts, most of them near a limit."""
    return st.one_of(st.integers(0, 8), *(st.integers(limit - 8, limit + 8) for limit in limits))


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "allowed_token_ids": around(1024).map(ids),
        "logit_bias": around(1024).map(lambda count: bias(count)),
        "stop_token_ids": around(128 - OWN, 2000).map(ids),
        "min_tokens": st.integers(0, ROOM),
        "bad_words": st.lists(st.text("ab( é", min_size=1, max_size=40), max_size=140),
        "n": st.integers(1, 4),
        "seed": st.one_of(st.integers(-(2**63), SEED), st.integers(SEED - 4, SEED)),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1, exclude_min=True),
        "top_k": st.one_of(st.integers(-1, 5), st.just(2**40)),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0, 1e300, exclude_min=True),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logprobs": st.integers(0, 20),
        "logprob_token_ids": around(128).map(ids),
        "prompt_logprobs": st.integers(-1, 20),
        "ignore_eos": st.booleans(),
    },
)


# A penalty beyond 32 bits becomes infinite, with a warning.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(REQUESTS)
def test_the_runner_takes_every_request_that_is_admitted(
    processor: Any, runner: Runner, fields: dict[str, Any]
) -> None:
    try:
        check_limits(COMPLETIONS, fields)
        request = process(processor, **fields)
    except (RequestError, ValueError, *client_errors()):
        return
    runner.take(request)
