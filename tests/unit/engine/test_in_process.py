"""Requests to an engine without HTTP, with a fake of the vLLM door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.config import model_from
from rayllm.core.errors import ModelNotFoundError, RequestError
from rayllm.engine import in_process
from rayllm.engine.in_process import InProcessClient
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm.generation import Prompt
from rayllm.lora import Adapter

Body = dict[str, Any]
BOS = "<s>"


class Door:
    """A fake of `rayllm.engine.vllm.generation`: a request is its body, and an output is its arguments."""

    def __init__(self) -> None:
        self.parsed: list[Body] = []

    def completion_request(self, body: Body) -> Body:
        self.parsed.append(body)
        return body

    async def generate(self, engine: Any, prompt: Prompt, request: Body, name: str, lora: Any, detokenize: bool) -> Any:
        return SimpleNamespace(prompt=prompt, request=request, name=name, lora=lora, detokenize=detokenize)

    async def pool(self, engine: Any, prompt: Prompt, task: str, pooling: Body, name: str, lora: Any) -> Any:
        return SimpleNamespace(prompt=prompt, task=task, pooling=pooling, name=name, lora=lora)


class AdapterPool:
    """Has every adapter but `none`; each has settings of its own, created for each use, except `plain`."""

    def __init__(self) -> None:
        self.in_use = 0
        self.stop = "END"

    @asynccontextmanager
    async def use(self, adapter: Adapter, model: str) -> AsyncIterator[Any]:
        if adapter.name == "none":
            raise ModelNotFoundError("There is none.", "model")
        assert model == str(adapter)
        self.in_use += 1
        plan = None if adapter.name == "plain" else RequestPlan(stop=(self.stop,))
        yield SimpleNamespace(plan=plan, lora_request=f"lora of {adapter.name}")
        self.in_use -= 1


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    found = Door()
    monkeypatch.setattr(in_process, "generation", found)
    return found


def calls(
    plan: RequestPlan | None = None, adapter_pool: AdapterPool | None = None, admit: Any = None
) -> InProcessClient:
    async def admitted(body: Body) -> Body:
        return body

    model = {"model_loading_config": {"model_id": "m"}} | ({"lora_config": {}} if adapter_pool else {})
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=5), parallel_config=SimpleNamespace(pipeline_parallel_size=2)
    )
    hf_config = SimpleNamespace(id2label={0: "good"})
    engine = SimpleNamespace(vllm_config=config, model_config=SimpleNamespace(hf_config=hf_config))
    found: Any = adapter_pool
    return InProcessClient(engine, model_from(model, "m", ()), plan or RequestPlan(), admit or admitted, found)


async def generated(
    made: InProcessClient, sampling: Body, prompt: Prompt | None = None, model: str | None = None
) -> Any:
    return await made.generate(prompt or Prompt(text="hi"), sampling, model, False)


async def asked(made: InProcessClient, sampling: Body, model: str | None = None) -> Body:
    """The request that vLLM reads, without the prompt that stands in for the real one."""
    request: Body = (await generated(made, sampling, model=model)).request
    return {name: value for name, value in request.items() if name != "prompt"}


@pytest.mark.parametrize(
    ("sampling", "body"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": None}, {"temperature": 0.5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"logprobs": 2}, {"logprobs": 2}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"top_logprobs": 3, "logprobs": True}, {"logprobs": 3}),
        ({"logprobs": False}, {}),
        ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
        ({"guided_json": {"type": "object"}}, {"structured_outputs": {"json": {"type": "object"}}}),
        ({"structured_outputs": {"regex": "a"}}, {"structured_outputs": {"regex": "a"}}),
    ],
)
async def test_sampling_is_a_completions(door: Door, sampling: Body, body: Body) -> None:
    before = dict(sampling)
    assert await asked(calls(), sampling) == body
    assert sampling == before


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temprature": 1}, "`sampling_params.temprature` is not a supported parameter; did you mean `temperature`"),
        ({"xyzzy": 1}, "`sampling_params.xyzzy` is not a supported parameter; docs/batch.md lists"),
        ({"model": "m"}, "`sampling_params.model` is not a supported parameter"),
        ({"stream": True}, "`sampling_params.stream` is not a supported parameter"),
        ({"prompt": "x"}, "`sampling_params.prompt` is not a supported parameter"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "exclude each other"),
    ],
)
async def test_what_is_no_sampling_is_refused(door: Door, sampling: Body, expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        await asked(calls(), sampling)
    assert door.parsed == []


async def test_defaults_and_stops_are_the_models(door: Door) -> None:
    plan = RequestPlan(stop=("END",), defaults={"temperature": 0.1, "max_tokens": 7})
    assert await asked(calls(plan), {"stop": "X"}) == {"stop": ["X", "END"], "temperature": 0.1, "max_tokens": 7}
    assert await asked(calls(plan), {"temperature": 1, "max_completion_tokens": 2}) == {
        "stop": ["END"],
        "temperature": 1,
        "max_tokens": 2,
    }


async def test_constraints_are_admitted_first(door: Door) -> None:
    seen: list[Body] = []

    async def admit(body: Body) -> Body:
        seen.append(body)
        if "structured_outputs" in body:
            raise RequestError("too costly.")
        return {**body, "admitted": True}

    made = calls(admit=admit)
    assert await asked(made, {"n": 2}) == {"n": 2, "admitted": True}
    with pytest.raises(RequestError, match="too costly"):
        await asked(made, {"guided_choice": ["a"]})
    assert len(seen) == 2


async def test_rows_that_ask_the_same_are_read_once(door: Door) -> None:
    made = calls()
    for sampling in ({"n": 1, "seed": 2}, {"seed": 2, "n": 1}, {"n": 1, "seed": 3}, {"n": 1, "seed": 2}):
        assert await asked(made, sampling) == sampling
    assert len(door.parsed) == 2
    for seed in range(400):
        await asked(made, {"seed": seed})
    assert len(made._parsed) == 256


async def test_each_row_has_a_name_of_its_own(door: Door) -> None:
    made = calls()
    assert len({(await generated(made, {})).name for _ in range(5)}) == 5


# Adapters.


async def test_an_adapter_is_there_while_it_is_used(door: Door) -> None:
    adapter_pool = AdapterPool()
    made = calls(RequestPlan(stop=("BASE",)), adapter_pool)
    answer = await generated(made, {}, model="m:x")
    assert (answer.lora, answer.request["stop"]) == ("lora of x", ["END"])
    assert adapter_pool.in_use == 0
    with pytest.raises(ModelNotFoundError, match="There is none"):
        await generated(made, {}, model="m:none")


@pytest.mark.parametrize("name", [None, "m", "m:plain"])
async def test_without_settings_of_its_own_the_models_hold(door: Door, name: str | None) -> None:
    assert await asked(calls(RequestPlan(stop=("BASE",)), AdapterPool()), {}, model=name) == {"stop": ["BASE"]}


async def test_an_adapter_that_changed_is_asked_as_it_is_now(door: Door) -> None:
    """Its old settings are gone, and the new ones may lie where they lay."""
    adapter_pool = AdapterPool()
    made = calls(adapter_pool=adapter_pool)
    for number in range(20):
        adapter_pool.stop = f"END{number}"
        # In a task, with which the settings that it saw end.
        assert await asyncio.create_task(asked(made, {}, model="m:x")) == {"stop": [f"END{number}"]}


async def test_another_model_is_not_there(door: Door) -> None:
    for made in (calls(), calls(adapter_pool=AdapterPool())):
        with pytest.raises(ModelNotFoundError, match="This job has no model `other`; it runs `m`"):
            await generated(made, {}, model="other")


# Prompts.


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("text", ["hi", "<s>hi", "<s><s>hi"])
async def test_a_text_has_one_bos(door: Door, text: str, adds: bool) -> None:
    made = calls(RequestPlan(bos=BOS, tokenizer_adds_bos=adds))
    seen = "hi" if adds else "<s>hi"
    assert (await generated(made, {}, Prompt(text=text))).prompt == Prompt(text=seen)
    pooled: Any = await made.pool("embed", Prompt(text=text), {}, None)
    assert pooled.prompt == Prompt(text=seen)


@pytest.mark.parametrize("prompt", [Prompt(text="<s><s>hi", is_rendered=True), Prompt(token_ids=[0, 0, 5])])
async def test_what_a_template_or_a_tokenizer_made_stays(door: Door, prompt: Prompt) -> None:
    assert (await generated(calls(RequestPlan(bos=BOS)), {}, prompt)).prompt == prompt


# Pooling.


async def test_pooling(door: Door) -> None:
    made = calls(adapter_pool=AdapterPool())
    answer: Any = await made.pool("embed", Prompt(token_ids=[1]), {"dimensions": 4}, "m:x")
    assert (answer.task, answer.pooling, answer.lora) == ("embed", {"dimensions": 4}, "lora of x")
    with pytest.raises(
        RequestError, match=r"`pooling_params.dimension` is not a supported parameter; did you mean `dimensions`"
    ):
        await made.pool("embed", Prompt(), {"dimension": 4}, None)
    with pytest.raises(
        RequestError, match=r"`pooling_params.n` is not a supported parameter; use dimensions or use_act"
    ):
        await made.pool("embed", Prompt(), {"n": 4}, None)


def test_what_the_engine_says_of_itself(door: Door) -> None:
    assert (calls().max_concurrent, calls().labels()) == (10, {0: "good"})
