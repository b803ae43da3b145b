"""What stands around vLLM's `generate` and its streams: vLLM's own classes, but no engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind

from rayllm.core.errors import RayLLMError, RequestError, UnavailableError
from rayllm.engine.structured_output.gate import Options
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.application import pass_anthropic_errors
from rayllm.engine.vllm.errors import error_object
from rayllm.engine.vllm.structured_output import guard_generation
from tests.vllm.test_shipped_parsers import tokenizer

SCHEMA = {"type": "string", "pattern": "a{1,255}"}


class Engine:
    """A fake AsyncLLM with scripted outputs."""

    def __init__(self, *finish_reasons: str | None) -> None:
        self._finish_reasons = finish_reasons
        self.is_closed = False
        self.asked: list[Any] = []
        self.model_config: Any = None
        structured = SimpleNamespace(backend="guidance", reasoning_parser="", enable_in_reasoning=False)
        self.vllm_config = SimpleNamespace(structured_outputs_config=structured)

    async def generate(self, prompt: str, sampling_params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
        self.asked.append(sampling_params.structured_outputs)
        try:
            for reason in self._finish_reasons:
                # Other reasons are texts that stop the reply: what of it has been written.
                stop = reason if reason not in (None, "stop", "error") else None
                finish = "stop" if stop else reason
                one = SimpleNamespace(index=0, text=stop or "", finish_reason=finish, stop_reason=stop)
                yield SimpleNamespace(outputs=[one])
        finally:
            self.is_closed = True


class Gate:
    """A fake gate that records constraints, and raises what it is given for them."""

    def __init__(self, error: RayLLMError | None = None) -> None:
        self.prepared: list[tuple[str, str]] = []
        self.unconstrained = 0
        self._error = error

    async def prepare(self, kind: str, text: str, options: Options) -> tuple[str, str]:
        self.prepared.append((kind, text))
        if self._error:
            raise self._error
        return ("json", '{"title": "prepared"}') if kind == "json_object" else (kind, text)

    async def explain(self, kind: str, text: str) -> None:
        if "minLength" in text:
            raise RequestError("It contradicts itself.", "tools")

    forces_calls = False

    def refuse_unforced_calls(self) -> None:
        self.unconstrained += 1


async def is_satisfied(kind: str, text: str, answer: str) -> bool:
    return answer == "whole"


def guarded(engine: Engine, gate: Gate | None = None) -> Gate:
    gate = gate or Gate()
    guard_generation(engine, gate, is_satisfied)  # type: ignore[arg-type]
    return gate


def sampling(**constraint: Any) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    return SamplingParams(structured_outputs=StructuredOutputsParams(**constraint) if constraint else None)


async def test_a_generation_that_ends_with_an_error_raises() -> None:
    engine = Engine(None, "error")
    guarded(engine)
    outputs = engine.generate("x", sampling(), "id")
    assert (await anext(outputs)).outputs[0].finish_reason is None
    with pytest.raises(moved_names.load("GenerationError")):
        await anext(outputs)
    assert engine.is_closed
    well = Engine(None, "stop")
    guarded(well)
    assert [o.outputs[0].finish_reason async for o in well.generate("x", sampling(), "id")] == [None, "stop"]


async def test_every_constraint_is_prepared_before_the_engine_sees_it() -> None:
    engine = Engine("stop")
    gate = guarded(engine)
    shared = sampling(json_object=True)
    for params in (sampling(json=SCHEMA), sampling(choice=["a"]), sampling(), sampling(structural_tag="{}"), shared):
        async for _ in engine.generate("x", params, request_id="id"):
            pass
    assert gate.prepared == [
        ("json", json.dumps(SCHEMA)),
        ("choice", '["a"]'),
        ("structural_tag", "{}"),
        ("json_object", ""),
    ]
    assert gate.unconstrained == 1
    json_, choice, none, tag, prepared = engine.asked
    assert (json_.json, choice.choice, none, tag.structural_tag) == (json.dumps(SCHEMA), ["a"], None, "{}")
    assert prepared.json == '{"title": "prepared"}'
    # Rows of a batch share their parameters.
    assert shared.structured_outputs.json_object


async def test_where_vllm_refuses_a_request_the_reason_is_looked_for() -> None:
    from vllm.exceptions import VLLMValidationError

    class Refusing(Engine):
        async def generate(self, prompt: str, sampling_params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
            raise VLLMValidationError("Invalid structural tag specification.")
            yield

    engine = Refusing()
    guarded(engine)
    for spec, said in (('{"minLength": 7}', "contradicts"), ("{}", "Invalid structural tag")):
        with pytest.raises(VLLMValidationError, match=said):
            await anext(engine.generate("x", sampling(structural_tag=spec), "id"))


@pytest.mark.parametrize("output_kind", ["DELTA", "CUMULATIVE"])
async def test_a_stop_text_that_cuts_a_constrained_answer_is_an_error(output_kind: str) -> None:
    from vllm.exceptions import VLLMValidationError

    async def finish(text: str, **constraint: Any) -> None:
        engine = Engine(text)
        guarded(engine)
        params = sampling(**constraint)
        params.stop, params.output_kind = ["}"], RequestOutputKind[output_kind]
        async for _ in engine.generate("x", params, "id"):
            pass

    with pytest.raises(VLLMValidationError, match="stop text") as caught:
        await finish("cut", json=SCHEMA)
    assert caught.value.parameter == "stop"
    await finish("whole", json=SCHEMA)
    await finish("cut")
    # What xgrammar constrains may hold free text.
    await finish("cut", structural_tag="{}")


THOUGHT, ANSWER = "<think>It rains.", "</think>{}"


@pytest.mark.parametrize(
    ("prompt", "answer", "arguments", "ends_well"),
    [
        ("Hi", THOUGHT, {}, False),
        ("Hi", THOUGHT + ANSWER, {}, True),
        ("Hi", THOUGHT, {"reasoning_ended": True}, True),
        # As templates switch reasoning off.
        ("Hi<think></think>", "{}", {"reasoning_parser_kwargs": {"chat_template_kwargs": {}}}, True),
        ("Hi", "{}", {}, False),
    ],
)
async def test_an_answer_that_ends_while_the_model_reasons_is_an_error(
    prompt: str, answer: str, arguments: dict[str, Any], ends_well: bool
) -> None:
    from vllm.exceptions import VLLMValidationError

    class Reasoning(Engine):
        def get_tokenizer(self) -> Any:
            return tokenizer()

        async def generate(self, asked: str, sampling_params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
            tokens = tokenizer().encode(answer, add_special_tokens=False)
            for token in tokens:
                reason = "stop" if token is tokens[-1] else None
                one = SimpleNamespace(index=0, token_ids=[token], finish_reason=reason, stop_reason=None)
                yield SimpleNamespace(outputs=[one], prompt_token_ids=tokenizer().encode(prompt))

    engine = Reasoning()
    engine.model_config = SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen3"))
    engine.vllm_config.structured_outputs_config.reasoning_parser = "qwen3"
    guarded(engine)
    params = sampling(json=SCHEMA)
    params.output_kind = RequestOutputKind.DELTA
    outputs = engine.generate("x", params, "id", **arguments)
    if ends_well:
        assert [output async for output in outputs]
        return
    with pytest.raises(VLLMValidationError, match="while it reasoned"):
        [output async for output in outputs]


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [(RequestError("Too long.", "tools"), 400, "tools"), (UnavailableError("Too many."), 503, None)],
)
async def test_what_is_not_admitted_is_said_in_vllms_words(error: Any, status: int, param: str | None) -> None:
    engine = Engine("stop")
    guarded(engine, Gate(error))
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
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse

    serving = object.__new__(AnthropicServingMessages)
    serving.stop_reason_map = {"stop": "end_turn"}
    pass_anthropic_errors(SimpleNamespace(state=SimpleNamespace(anthropic_serving_messages=serving)))
    # From vLLM 0.33 on, the chat's chunks are converted before they are events.
    are_events = not hasattr(serving, "chat_completion_stream_generator_raw")
    choice = {"index": 0, "delta": {"role": "assistant"}}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    first = ChatCompletionStreamResponse(id="x", created=1, model="m", choices=[choice], usage=usage)
    error = ErrorResponse(error={"message": "No.", "type": "BadRequestError", "code": 400})
    error_event = f"data: {error.model_dump_json()}\n\n"

    async def chunks(*given: Any) -> AsyncIterator[Any]:
        for chunk in given:
            yield f"data: {chunk.model_dump_json()}\n\n" if are_events else chunk
        if are_events:
            yield "data: [DONE]\n\n"

    async def converted(*given: Any) -> list[str]:
        return [event async for event in serving.message_stream_converter(chunks(*given))]

    assert await converted(error) == [f"event: error\n{error_event}"]
    start, last = await converted(first, error)
    assert start.startswith("event: message_start")
    assert last == f"event: error\n{error_event}"
    assert (await converted(first))[-1].startswith("event: message_stop")
