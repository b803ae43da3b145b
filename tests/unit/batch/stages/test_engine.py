"""The engine's stages, with an engine by hand: what it is given of a row, and what becomes of its answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rayllm.access import Caller
from rayllm.batch.execution.row_loop import RowLoop
from rayllm.batch.rows import ERROR, Row
from rayllm.batch.stages import engine, request
from rayllm.batch.stages.engine import VLLMEngineStage
from rayllm.batch.stages.examples import ENGINE as EXAMPLES
from rayllm.batch.stages.request import EngineRequestStage
from rayllm.config import model_from
from rayllm.core.endpoints import CHAT
from rayllm.core.errors import ModelNotFoundError
from rayllm.engine.vllm.generation import Prompt

MODEL = model_from({"model_loading_config": {"model_id": "m"}, "lora_config": {}}, "m", ())
TOKEN = SimpleNamespace(logprob=-0.5, rank=1, decoded_token="a")


def choice(text: str = "", **keys: Any) -> SimpleNamespace:
    """One of vLLM's `outputs`."""
    found = {"token_ids": (7, 8), "finish_reason": "stop", "stop_reason": None, "logprobs": None}
    return SimpleNamespace(text=text, cumulative_logprob=-1.0, **found | keys)


class Direct:
    """Stands for `DirectCalls`: notes what it is asked, and gives what a test has put there."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.choices = [choice("hi")]
        self.prompt_logprobs: Any = None
        self.pooled = [0.25, 0.75]

    async def generate(self, prompt: Prompt, sampling: Any, model: str | None, detokenize: bool) -> Any:
        self.asked.append((prompt, sampling, model, detokenize))
        if model == "m:none":
            raise ModelNotFoundError("There is none.", "model")
        return SimpleNamespace(
            outputs=self.choices,
            prompt=prompt.text or None,
            prompt_token_ids=prompt.token_ids or [1],
            num_cached_tokens=None,
            prompt_logprobs=self.prompt_logprobs,
        )

    async def pool(self, task: str, prompt: Prompt, pooling: Any, model: str | None) -> tuple[list[float], int]:
        self.asked.append((task, prompt, pooling, model))
        return self.pooled, 3

    def labels(self) -> dict[int, str]:
        return {1: "good"}


class Worker:
    """Stands for `EngineWorker`."""

    made: Worker

    def __init__(self, *args: Any, **options: Any) -> None:
        Worker.made = self
        self._rows = RowLoop()
        self._rows.limit(4)
        self.checks = 0
        self.got: list[tuple[str, dict[str, str], Any]] = []
        routes = [Route(path, self._answer, methods=["POST"]) for path in ("/score", CHAT)]
        self.server = SimpleNamespace(in_process=Direct(), app=Starlette(routes=routes))
        self.reply: Response = JSONResponse({})

    async def _answer(self, asked: Request) -> Response:
        self.got.append((asked.url.path, dict(asked.headers), await asked.json()))
        return self.reply

    async def check(self) -> None:
        self.checks += 1

    def map(self, work: Callable[[Row], Awaitable[Row]], rows: list[Row]) -> list[Row]:
        return self._rows.map(work, rows)


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine, request):
        monkeypatch.setattr(module, "EngineWorker", Worker)


def stage(task: str = "generate", detokenize: bool = False) -> tuple[VLLMEngineStage, Direct]:
    made = VLLMEngineStage(MODEL, task, detokenize=detokenize, workers="cpu")
    return made, Worker.made.server.in_process


def one(made: Any, row: Row) -> Row:
    (answer,) = made([row])
    assert isinstance(answer, dict)
    return answer


# Rows that generate.


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "a"}, Prompt(text="a")),
        ({"prompt": "a", "is_rendered": True}, Prompt(text="a", is_rendered=True)),
        ({"prompt": "a", "prompt_token_ids": np.array([1, 2])}, Prompt(token_ids=[1, 2])),
        ({"prompt_token_ids": []}, Prompt(token_ids=[])),
        ({"prompt": "a", "images": ["i"]}, Prompt(text="a", images=["i"])),
    ],
)
def test_what_the_engine_reads(row: Row, prompt: Prompt) -> None:
    made, direct = stage()
    assert ERROR not in one(made, row)
    assert direct.asked[0][0] == prompt


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": None}, "a row needs `messages`, a `prompt` or `prompt_token_ids`."),
        ({"prompt_token_ids": ["x"]}, "ValueError: "),
        (
            {"prompt": "a", "pooling_params": {"x": 1}},
            "`pooling_params` does not apply to this task; use `sampling_params`",
        ),
        ({"prompt": "a", "sampling_params": [1]}, "`sampling_params` must be a mapping, not list."),
        ({"prompt": "a", "model": "m:none"}, "There is none."),
    ],
)
def test_a_row_that_cannot_be_asked(row: Row, expected: str) -> None:
    made, _ = stage()
    bad, good = made([row, {"prompt": "a"}])
    assert bad[ERROR].startswith(expected)
    assert row.items() <= bad.items()
    assert good["generated_text"] == "hi"


def test_parameters_are_plain_and_those_that_are_null_are_none() -> None:
    made, direct = stage(detokenize=True)
    sampling = {"temperature": np.float32(0.5), "stop": np.array(["a", "b"]), "seed": None, "n": 1}
    one(made, {"prompt": "a", "sampling_params": sampling, "pooling_params": None, "model": "m:x"})
    _, sent, model, detokenize = direct.asked[0]
    assert (sent, model, detokenize) == ({"temperature": 0.5, "stop": ["a", "b"], "n": 1}, "m:x", True)
    assert type(sent["temperature"]) is float


def test_an_answer_in_full() -> None:
    made, direct = stage(detokenize=True)
    direct.choices = [choice("hi", finish_reason="length", logprobs=[{7: TOKEN}, None])]
    direct.prompt_logprobs = [None, {5: TOKEN}]
    one_token = {"logprob": -0.5, "rank": 1, "token": "a"}
    assert one(made, {"prompt": "a", "x": 1}) == {
        "x": 1,
        "prompt": "a",
        "prompt_token_ids": [1],
        "num_input_tokens": 1,
        "num_cached_tokens": 0,
        "generated_text": "hi",
        "generated_tokens": [7, 8],
        "num_generated_tokens": 2,
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": [[{"token_id": 7, **one_token}], []],
        "cumulative_logprob": -1.0,
        "prompt_logprobs": [[], [{"token_id": 5, **one_token}]],
    }


def test_every_choice_is_kept() -> None:
    made, direct = stage(detokenize=True)
    direct.choices = [choice("one"), choice("two", token_ids=[9], stop_reason=9)]
    row = one(made, {"prompt": "a"})
    assert (row["generated_text"], row["num_generated_tokens"]) == ("one", 3)
    assert [found["generated_text"] for found in row["choices"]] == ["one", "two"]
    assert [found["stop_reason"] for found in row["choices"]] == [None, "9"]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (choice(""), None),
        (choice("hi", stop_reason="END"), "hi"),
        # The stop came at once: there is no text, and none is to be made of its tokens.
        (choice("", stop_reason="END"), ""),
        (choice("", finish_reason="repetition", stop_reason="repetition_detected"), None),
    ],
)
def test_the_engine_writes_text_where_a_stop_is_one(found: Any, text: str | None) -> None:
    made, direct = stage()
    direct.choices = [found]
    assert one(made, {"prompt": "a"})["generated_text"] == text


# Rows that are pooled.


def test_a_vector() -> None:
    made, direct = stage("embed")
    row = {"prompt_token_ids": [1], "pooling_params": {"dimensions": 2}, "sampling_params": None}
    assert one(made, row) == {**row, "embedding": [0.25, 0.75], "num_input_tokens": 3}
    assert direct.asked == [("embed", Prompt(token_ids=[1]), {"dimensions": 2}, None)]
    assert "`sampling_params` does not apply" in one(made, {"prompt": "a", "sampling_params": {"n": 1}})[ERROR]


def test_a_class() -> None:
    made, direct = stage("classify")
    row = one(made, {"prompt": "a"})
    assert (row["probs"], row["label"], row["num_input_tokens"]) == ([0.25, 0.75], "good", 3)
    direct.pooled = [0.9, 0.1]
    assert one(made, {"prompt": "a"})["label"] == "0"


def test_a_score() -> None:
    made, _ = stage("score")
    Worker.made.reply = JSONResponse({"data": [{"score": 0.5}], "usage": {"prompt_tokens": 4}})
    row = {"text_1": "a", "text_2": "b", "pooling_params": {"use_activation": False}}
    assert one(made, row) == {**row, "score": 0.5, "num_input_tokens": 4}
    (got,) = Worker.made.got
    assert got[0] == "/score"
    assert got[2] == {"model": "m", "text_1": "a", "text_2": "b", "use_activation": False}
    assert one(made, {"text_1": "a", "text_2": None})[ERROR] == "a row to score needs `text_1` and `text_2`."
    Worker.made.reply = JSONResponse({"error": {"message": "too long"}}, 400)
    assert one(made, row)[ERROR] == "too long"


@pytest.mark.parametrize("task", EXAMPLES)
def test_results_have_the_types_of_the_example(task: str) -> None:
    made, direct = stage(task, detokenize=True)
    logprobs = [{7: TOKEN}, None]
    direct.choices = [choice("hi", logprobs=logprobs, stop_reason=9), choice("there", logprobs=logprobs)]
    direct.prompt_logprobs = [None, {5: TOKEN}]
    Worker.made.reply = JSONResponse({"data": [{"score": 0.5}], "usage": {"prompt_tokens": 4}})
    asked = {"text_1": "a", "text_2": "b"} if task == "score" else {"prompt": "a", "prompt_token_ids": [1, 2]}
    results = {name: value for name, value in one(made, asked).items() if not name.startswith("text_")}
    assert {name: pa.array([value]).type for name, value in results.items()} == {
        name: pa.array([value]).type for name, value in EXAMPLES[task].items()
    }


# Rows that are requests.

BODY = {"model": "m", "messages": []}


def test_a_request_is_answered_as_by_the_service() -> None:
    made = EngineRequestStage(MODEL, workers="cpu")
    Worker.made.reply = JSONResponse({"id": 1}, 200)
    row = {"url": CHAT, "body": BODY}
    assert one(made, row) == {**row, "status_code": 200, "response": {"id": 1}}
    one(made, {"url": CHAT, "body": {**BODY, "model": "m:x"}})
    (_, plain, sent), (_, adapter, _) = Worker.made.got
    assert sent == BODY
    assert (plain["x-rayllm-model"], plain.get("x-rayllm-adapter")) == ("m", None)
    assert (adapter["x-rayllm-model"], adapter["x-rayllm-adapter"]) == ("m:x", "x")
    assert Worker.made.checks == 0


def test_an_error_is_an_answer_and_where_it_is_the_engines_that_is_looked_at() -> None:
    made = EngineRequestStage(MODEL, workers="cpu")
    Worker.made.reply = PlainTextResponse("broken", 500)
    assert one(made, {"url": CHAT, "body": BODY})["response"] == "broken"
    assert Worker.made.checks == 1
    row = one(made, {"url": CHAT, "body": {**BODY, "model": "other"}})
    assert (row["status_code"], row["response"]["error"]["code"]) == (404, "model_not_found")
    assert len(Worker.made.got) == 1


def test_a_request_uses_only_the_models_of_its_caller() -> None:
    made = EngineRequestStage(MODEL, workers="cpu", caller=Caller("alice", "alice", ("m:*",)))
    Worker.made.reply = JSONResponse({"id": 1}, 200)
    assert one(made, {"url": CHAT, "body": {**BODY, "model": "m:x"}})["status_code"] == 200
    row = one(made, {"url": CHAT, "body": BODY})
    assert (row["status_code"], row["response"]["error"]["code"]) == (403, "permission_denied")
    assert len(Worker.made.got) == 1


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, "a row needs a `url`, such as `/v1/chat/completions`, and a `body`."),
        ({"url": CHAT, "body": None}, "a row needs a `url`, such as `/v1/chat/completions`, and a `body`."),
        ({"url": "/v1/models", "body": BODY}, "`/v1/models` is not available in batches; use one of "),
        ({"url": "/v1/audio/transcriptions", "body": BODY}, "is not available in batches"),
        ({"url": CHAT, "body": json.dumps(BODY)}, "`body` must be an object."),
        ({"url": CHAT, "body": {"messages": []}}, "`body.model` must name the model."),
        ({"url": CHAT, "body": {**BODY, "stream": True}}, "batches do not stream; leave `stream` out."),
    ],
)
def test_a_row_that_is_no_request(row: Row, expected: str) -> None:
    assert expected in one(EngineRequestStage(MODEL, workers="cpu"), row)[ERROR]
    assert Worker.made.got == []
