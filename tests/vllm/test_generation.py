"""What stands around vLLM's `generate` and its streams: vLLM's own classes, but no engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.application import pass_stream_errors
from rayllm.engine.vllm.errors import error_object
from rayllm.engine.vllm.structured_output import guard_generation
from rayllm.errors import RequestError, UnavailableError

SCHEMA = {"type": "string", "pattern": "a{1,255}"}


class Engine:
    """A fake AsyncLLM with scripted outputs."""

    def __init__(self, *finish_reasons: str | None) -> None:
        self._finish_reasons = finish_reasons
        self.is_closed = False

    async def generate(self, prompt: str, sampling_params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
        try:
            for reason in self._finish_reasons:
                yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason=reason)])
        finally:
            self.is_closed = True


async def no_fault(kind: str, spec: str, is_refused: bool) -> None:
    pass


def sampling(**constraint: Any) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    return SamplingParams(structured_outputs=StructuredOutputsParams(**constraint) if constraint else None)


async def test_a_generation_that_ends_with_an_error_raises() -> None:
    engine = Engine(None, "error")
    guard_generation(engine, no_fault)
    outputs = engine.generate("x", sampling(), "id")
    assert (await anext(outputs)).outputs[0].finish_reason is None
    with pytest.raises(moved_names.load("GenerationError")):
        await anext(outputs)
    assert engine.is_closed
    well = Engine(None, "stop")
    guard_generation(well, no_fault)
    assert [o.outputs[0].finish_reason async for o in well.generate("x", sampling(), "id")] == [None, "stop"]


async def test_every_constraint_is_looked_at_before_the_engine_sees_it() -> None:
    seen = []

    async def admit(kind: str, spec: str, is_refused: bool) -> None:
        seen.append((kind, spec, is_refused))

    engine = Engine("stop")
    guard_generation(engine, admit)
    for params in (sampling(json=SCHEMA), sampling(choice=["a"]), sampling(), sampling(structural_tag="{}")):
        async for _ in engine.generate("x", params, request_id="id"):
            pass
    assert seen == [
        ("json", json.dumps(SCHEMA), False),
        ("choice", '["a"]', False),
        ("structural_tag", "{}", False),
    ]


async def test_where_vllm_refuses_a_request_its_constraint_is_looked_at_again() -> None:
    from vllm.exceptions import VLLMValidationError

    class Refusing(Engine):
        async def generate(self, prompt: str, sampling_params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
            raise VLLMValidationError("Invalid structural tag specification.")
            yield

    async def admit(kind: str, spec: str, is_refused: bool) -> None:
        if is_refused and "minLength" in spec:
            raise RequestError("It contradicts itself.", "tools")

    engine = Refusing()
    guard_generation(engine, admit)
    for spec, said in (('{"minLength": 7}', "contradicts"), ("{}", "Invalid structural tag")):
        with pytest.raises(VLLMValidationError, match=said):
            await anext(engine.generate("x", sampling(structural_tag=spec), "id"))


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [(RequestError("Too long.", "tools"), 400, "tools"), (UnavailableError("Too many."), 503, None)],
)
async def test_what_is_not_admitted_is_said_in_vllms_words(error: Any, status: int, param: str | None) -> None:
    async def admit(kind: str, spec: str, is_refused: bool) -> None:
        raise error

    engine = Engine("stop")
    guard_generation(engine, admit)
    with pytest.raises(Exception, match="Too") as caught:
        await anext(engine.generate("x", sampling(json=SCHEMA), "id"))
    begun = RuntimeError("Caught handled exception, but response already started.")
    begun.__cause__ = caught.value
    for raised in (caught.value, begun):
        said = error_object(raised)
        assert said is not None
        assert (said["code"], said["param"]) == (status, param)
    assert error_object(ValueError("ours")) is None


async def test_errors_of_a_chat_pass_through_the_conversion_to_anthropics_events() -> None:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    serving = object.__new__(AnthropicServingMessages)
    serving.stop_reason_map = {"stop": "end_turn"}
    pass_stream_errors(SimpleNamespace(state=SimpleNamespace(anthropic_serving_messages=serving)))
    chunk = {"id": "x", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    error = f"data: {json.dumps({'error': {'message': 'No.', 'type': 'BadRequestError', 'code': 400}})}\n\n"

    async def chunks(*lines: str) -> AsyncIterator[str]:
        for line in lines:
            yield line

    async def converted(*lines: str) -> list[str]:
        return [event async for event in serving.message_stream_converter(chunks(*lines))]

    first = f"data: {json.dumps({**chunk, 'usage': usage})}\n\n"
    assert await converted(error, "data: [DONE]\n\n") == [f"event: error\n{error}"]
    start, last = await converted(first, error, "data: [DONE]\n\n")
    assert start.startswith("event: message_start")
    assert last == f"event: error\n{error}"
    assert (await converted(first, "data: [DONE]\n\n"))[-1].startswith("event: message_stop")
