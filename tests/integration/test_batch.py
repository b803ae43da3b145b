"""Batch inference on the real stack: datasets through engines of their own, beside a service with the same model."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pyarrow
import pytest
import ray
from pyarrow import parquet
from ray.data import DataContext, ExecutionResources

from benchmarks.processes import titled
from rayllm.batch import (
    HTTPRequestProcessorConfig,
    RequestProcessorConfig,
    VLLMProcessorConfig,
    build_llm_processor,
)
from rayllm.batch.rows import ERROR, has_nulls_only
from rayllm.core.errors import EngineError
from tests.compatibility.cases import TOOL, WEATHER_QUESTION
from tests.integration.service import APP, DEMO, Service
from tests.integration.test_examples import run, written
from tests.unit.batch.stages.endpoint import Endpoint

CHAT = "/v1/chat/completions"
ENGINE = "VLLM::EngineCore"
KEY = "hush-it-is-a-secret"
GREEDY = {"temperature": 0, "max_tokens": 48}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
FOLLOW_UP = [
    *FRANCE,
    {"role": "assistant", "content": "The capital of France is Paris."},
    {"role": "user", "content": "What about Germany?"},
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}

# What a row asks for, and the same online: path and body. The answers have to be the same.
SAME: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "text": ({"messages": FRANCE[0]["content"]}, CHAT, {"messages": FRANCE}),
    "conversation": ({"messages": FOLLOW_UP}, CHAT, {"messages": FOLLOW_UP}),
    "system": (
        {"messages": [{"role": "system", "content": "Be brief."}, *FRANCE]},
        CHAT,
        {"messages": [{"role": "system", "content": "Be brief."}, *FRANCE]},
    ),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is the capital"}, "of Japan?"]}]},
        CHAT,
        {"messages": [{"role": "user", "content": "What is the capital\nof Japan?"}]},
    ),
    "adapter": ({"messages": FRANCE, "model": "rayllm-demo:pirate"}, CHAT, {"messages": FRANCE}),
    "prompt": ({"prompt": "The capital of"}, "/v1/completions", {"prompt": "The capital of"}),
    "prompt with its own BOS": (
        {"prompt": "<|begin_of_text|>The capital of"},
        "/v1/completions",
        {"prompt": "<|begin_of_text|>The capital of"},
    ),
    "tokens": ({"prompt_token_ids": [5, 6, 7]}, "/v1/completions", {"prompt": [5, 6, 7]}),
    "stop": ({"messages": FRANCE, "sampling_params": {"stop": ["is"]}}, CHAT, {"messages": FRANCE, "stop": ["is"]}),
    "old name": (
        {"messages": FRANCE, "sampling_params": {"guided_choice": ["Rome", "Oslo"]}},
        CHAT,
        {"messages": FRANCE, "structured_outputs": {"choice": ["Rome", "Oslo"]}},
    ),
    "schema": (
        {"messages": FRANCE, "sampling_params": {"structured_outputs": {"json": SCHEMA}}},
        CHAT,
        {"messages": FRANCE, "guided_json": SCHEMA},
    ),
    "continued": (
        {
            "messages": [*FRANCE, {"role": "assistant", "content": "The capital of France"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
        CHAT,
        {
            "messages": [*FRANCE, {"role": "assistant", "content": "The capital of France"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ),
}
# Rows that fail, each with a part of its reason.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({"sampling_params": {}}, "needs `messages`, a `prompt` or `prompt_token_ids`"),
    "unknown adapter": ({"messages": FRANCE, "model": "rayllm-demo:none"}, "no adapter `none`"),
    "other model": ({"messages": FRANCE, "model": "gpt"}, "it runs `rayllm-demo`"),
    "misspelled": ({"messages": FRANCE, "sampling_parms": {}}, "did you mean `sampling_params`?"),
    "misspelled parameter": (
        {"messages": FRANCE, "sampling_params": {"temprature": 1}},
        "`sampling_params.temprature` is not a supported parameter; did you mean `temperature`?",
    ),
    "out of range": ({"messages": FRANCE, "sampling_params": {"temperature": 99}}, "temperature must be in [0, 2]"),
    "too long": ({"prompt": "capital " * 3000}, "maximum"),
    "wrong role": ({"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
    "bad grammar": ({"messages": FRANCE, "sampling_params": {"guided_regex": "(("}}, "regular expression"),
    "too many biases": (
        {"messages": FRANCE, "sampling_params": {"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}},
        "`logit_bias` has 1025 entries; at most 1024 are allowed",
    ),
    "wrong parameters": ({"messages": FRANCE, "pooling_params": {"dimensions": 3}}, "pooling_params"),
}


def ask(row: dict[str, Any]) -> dict[str, Any]:
    """From the name of a case to its row."""
    name = row["name"]
    if name == "raises":
        return {"messages": row["nothing"]}
    if name == "two":
        return {"messages": FRANCE, "sampling_params": {"n": 2, "temperature": 1, "seed": 3, "logprobs": 1}}
    if name == "tool":
        return {"messages": [WEATHER_QUESTION], "tools": [TOOL], "sampling_params": {**GREEDY, "max_tokens": 100}}
    made = (SAME[name] if name in SAME else BROKEN[name])[0]
    return {**made, "sampling_params": {**GREEDY, **made.get("sampling_params", {})}}


@pytest.fixture(scope="module", autouse=True)
def modest() -> Iterator[None]:
    """The cluster of these tests has more CPUs on paper than there are."""
    options = DataContext.get_current().execution_options
    before, options.resource_limits = options.resource_limits, ExecutionResources(cpu=4)
    yield
    options.resource_limits = before


@pytest.fixture(scope="module")
def results(service: Service) -> dict[str, dict[str, Any]]:
    """The rows of every case, by name, from one job; the output keeps the order of the input."""
    names = [*SAME, *BROKEN, "raises", "two", "tool"]
    processor = build_llm_processor(VLLMProcessorConfig(model=DEMO, preserve_order=True, batch_size=8), preprocess=ask)
    rows = processor(ray.data.from_items([{"name": name} for name in names], override_num_blocks=3)).take_all()
    assert [row["name"] for row in rows] == names
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("case", SAME)
def test_a_row_is_answered_as_a_request_is(results: dict[str, Any], http: httpx.Client, case: str) -> None:
    asked, path, body = SAME[case]
    online = http.post(path, json={"model": asked.get("model", "rayllm-demo"), **GREEDY, **body}).json()
    choice = online["choices"][0]
    row = results[case]
    assert row[ERROR] is None
    assert row["generated_text"] == (choice["message"]["content"] if path == CHAT else choice["text"])
    assert row["finish_reason"] == choice["finish_reason"]
    assert row["num_input_tokens"] == online["usage"]["prompt_tokens"] == len(row["prompt_token_ids"])
    assert row["num_generated_tokens"] == online["usage"]["completion_tokens"] == len(row["generated_tokens"])


@pytest.mark.parametrize("case", BROKEN)
def test_a_row_that_fails_says_why_and_disturbs_no_other(results: dict[str, Any], case: str) -> None:
    row = results[case]
    assert BROKEN[case][1] in row[ERROR]
    assert row["generated_text"] is None


def test_a_preprocess_that_raises_fails_its_row(results: dict[str, Any]) -> None:
    assert results["raises"][ERROR] == "preprocess raised KeyError: 'nothing'; the row has the columns name."


def test_several_choices_with_their_logprobs(results: dict[str, Any]) -> None:
    row = results["two"]
    first, second = row["choices"]
    assert row["generated_text"] == first["generated_text"]
    assert row["num_generated_tokens"] == first["num_generated_tokens"] + second["num_generated_tokens"]
    assert len(first["logprobs"]) == first["num_generated_tokens"]
    assert first["logprobs"][0][0]["token_id"] == first["generated_tokens"][0]


def test_tools_are_shown_to_the_model(results: dict[str, Any]) -> None:
    called = json.loads(results["tool"]["generated_text"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert called["name"] == "get_current_temperature"
    assert "Paris" in called["arguments"]["location"]


def kill_new_engines(before: set[int], seen: Callable[[], int], times: int) -> Thread:
    """Kill the engine that is not among `before` once it has answered something, so many times."""

    def kill() -> None:
        killed: set[int] = set()
        end = time.monotonic() + 500
        while len(killed) < times and time.monotonic() < end:
            time.sleep(0.2)
            new = [p for p in titled(ENGINE) if p.pid not in before | killed]
            if new and seen() > len(killed) * 10:
                killed |= {p.pid for p in new}
                for process in new:
                    process.kill()

    thread = Thread(target=kill, daemon=True)
    thread.start()
    return thread


def long_answers(row: dict[str, Any]) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": 50, "min_tokens": 50, "ignore_eos": True}
    return {"prompt": f"Row {row['id']}.", "sampling_params": sampling}


def test_a_worker_whose_engine_dies_is_replaced_and_its_rows_are_done_again(service: Service) -> None:
    before = {p.pid for p in titled(ENGINE)}
    processor = build_llm_processor(
        VLLMProcessorConfig(model=DEMO, batch_size=16, is_chat=False), preprocess=long_answers
    )
    dataset = processor(ray.data.range(400))
    thread = kill_new_engines(before, lambda: ray.get(processor.progress.totals.remote()).rows, 1)
    rows = dataset.take_all()
    thread.join(1)
    assert not thread.is_alive()
    assert sorted(row["id"] for row in rows) == list(range(400))
    assert all(row[ERROR] is None and row["num_generated_tokens"] == 50 for row in rows)


def test_requests_through_the_running_application(service: Service) -> None:
    def request(row: dict[str, Any]) -> dict[str, Any]:
        model = "nobody" if row["id"] == 3 else "gpt-demo"
        return {"url": CHAT, "body": {"model": model, "messages": FRANCE, **GREEDY}}

    processor = build_llm_processor(RequestProcessorConfig(app_name=APP), preprocess=request)
    rows = {row["id"]: row for row in processor(ray.data.range(20)).take_all()}
    assert rows[3]["status_code"] == 404
    responses = {name: json.loads(row["response"]) for name, row in rows.items()}
    assert responses.pop(3)["error"]["code"] == "model_not_found"
    answers = [response["choices"][0]["message"]["content"] for response in responses.values()]
    assert answers == ["The capital of France is Paris."] * 19


def in_blocks(row: dict[str, Any]) -> dict[str, Any]:
    """Blocks of five rows: the first fails, the second is right, the third is both, the fourth asks for more."""
    block = row["id"] // 5
    if block == 0 or (block == 2 and row["id"] % 2):
        raise ValueError("a row that fails")
    more = {"logprobs": 1, "n": 2, "temperature": 1} if block == 3 else GREEDY
    return {"messages": FRANCE, "sampling_params": {"max_tokens": 8, **more}}


def requests_in_blocks(row: dict[str, Any]) -> dict[str, Any]:
    """The same as requests; of the last two, one is refused."""
    made = in_blocks(row)
    model = "nobody" if row["id"] == 19 else "rayllm-demo"
    return {"url": CHAT, "body": {"model": model, "messages": made["messages"], "max_tokens": 8}}


def one_schema(processor: Any, folder: Path, failed: int = 7) -> pyarrow.Schema:
    """The schema of all Parquet files of a job."""
    processor(ray.data.range(20, override_num_blocks=4)).write_parquet(str(folder))
    tables = [parquet.read_table(file) for file in sorted(folder.glob("*.parquet"))]
    assert sorted(table.num_rows for table in tables) == [5] * 4
    assert sum(table[ERROR].null_count for table in tables) == 20 - failed
    schema, *others = [table.schema.remove_metadata() for table in tables]
    assert others == [schema] * 3
    return schema


def test_the_files_of_a_job_have_one_schema_although_rows_fail(service: Service, tmp_path: Path) -> None:
    config = VLLMProcessorConfig(model=DEMO, preserve_order=True, batch_size=5)
    schema = one_schema(build_llm_processor(config, preprocess=in_blocks), tmp_path)
    assert {"generated_text", "generated_tokens", "finish_reason", "logprobs", "choices"} <= set(schema.names)
    assert not any(has_nulls_only(kind) for kind in schema.types)


@pytest.mark.parametrize(
    ("postprocess", "declared", "expected"),
    [
        (None, None, {"status_code": "int64", "response": "string"}),
        (
            lambda row: {"answer": row["response"].get("choices", [{}])[0].get("message", {}).get("content")},
            None,
            {"answer": "string"},
        ),
        (
            lambda row: {"length": len(row["response"]["choices"][0]["message"]["content"]) or 1 // 0},
            pyarrow.schema([("length", pyarrow.int32())]),
            {"length": "int32"},
        ),
    ],
    ids=["all results", "postprocess", "a declared schema"],
)
def test_the_files_of_requests_have_one_schema_although_rows_fail(
    service: Service, tmp_path: Path, postprocess: Any, declared: Any, expected: dict[str, str]
) -> None:
    config = RequestProcessorConfig(app_name=APP, preserve_order=True, batch_size=5)
    processor = build_llm_processor(
        config, preprocess=requests_in_blocks, postprocess=postprocess, output_schema=declared
    )
    schema = one_schema(processor, tmp_path, failed=7 if declared is None else 8)
    assert {name: str(schema.field(name).type) for name in expected} == expected


def test_requests_over_http_keep_the_pace_over_all_workers(cluster: None) -> None:
    # An endpoint that notes when requests come: engines take longer for some than for others.
    with Endpoint() as endpoint:
        processor = build_llm_processor(
            HTTPRequestProcessorConfig(url=endpoint.url, qps=20, batch_size=10),
            preprocess=lambda row: {"model": "rayllm-demo", "messages": FRANCE},
            postprocess=lambda row: {"id": row["id"]},
            concurrency=2,
        )
        assert processor(ray.data.range(60, override_num_blocks=6)).count() == 60
    times = [got.at for got in endpoint.got]
    assert len(times) == 60
    # It takes 2.95 seconds, and half of that if each of the two workers had a pace of its own.
    assert max(times) - min(times) > 2


def test_the_online_example(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_KEY", KEY)
    url = f"{service.url}/v1/chat/completions"
    said = run(["online.py", "--output", str(tmp_path / "out"), "--url", url, "--key-variable", "EXAMPLE_KEY"])
    rows = written(tmp_path / "out")
    assert {row["messages"][0]["content"]: row["resp"] for row in rows} == {
        "What is RayLLM?": (
            "RayLLM is a service that runs large language models on a Ray cluster behind an OpenAI-compatible API."
        ),
        "What is vLLM?": "vLLM is a fast inference engine for large language models, and RayLLM uses it to run them.",
        "What is the capital of Iceland?": "The capital of Iceland is Reykjavik.",
    }
    assert KEY not in said


def test_a_job_stops_at_the_first_row_that_fails_where_it_is_asked_to(service: Service) -> None:
    config = HTTPRequestProcessorConfig(url=service.url + CHAT, on_error="raise", max_retries=0)
    processor = build_llm_processor(config, preprocess=lambda row: {"model": "nobody", "messages": FRANCE})
    with pytest.raises(Exception, match="answered 404"):
        processor(ray.data.range(3)).take_all()


def test_a_model_that_the_cluster_cannot_hold_is_refused_at_once(service: Service) -> None:
    config = VLLMProcessorConfig(model=DEMO, accelerator_type="H100", engine_kwargs={"tensor_parallel_size": 2})
    with pytest.raises(Exception, match="needs 1 CPU, 2 GPUs"):
        build_llm_processor(config)(ray.data.range(1))


def test_engines_that_leave_no_cpu_for_what_is_between_them_are_refused_at_once(service: Service) -> None:
    # Each of the two fits; one dataset has both at once.
    first, second = (build_llm_processor(VLLMProcessorConfig(model=DEMO, concurrency=8)) for _ in range(2))
    before = {p.pid for p in titled("ray::MapWorker")}
    with pytest.raises(Exception, match=r"take 16 of the cluster's 16 CPUs.*`.materialize\(\)` between them"):
        second(first(ray.data.range(1))).take_all()
    end = time.monotonic() + 60
    while {p.pid for p in titled("ray::MapWorker")} - before:
        assert time.monotonic() < end
        time.sleep(1)


def test_a_broken_model_ends_the_job_with_its_reason(service: Service, tmp_path: Path) -> None:
    # Who finds out first says so: the engine, or who makes the prompts.
    with pytest.raises(Exception, match=r"the tokenizer cannot be read|holds no config\.json"):
        build_llm_processor(VLLMProcessorConfig(model=str(tmp_path)))(ray.data.range(1)).take_all()


def test_weights_that_contradict_their_configuration(service: Service, tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO.parent / "rayllm-demo" / "weights", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64, "vocab_size": 3000}))
    processor = build_llm_processor(VLLMProcessorConfig(model=str(folder), is_chat=False))
    with pytest.raises(Exception, match=r"config\.json: vocab_size is 3,000, but the tensor"):
        processor(ray.data.from_items([{"prompt": "Hi"}])).take_all()


def test_an_engine_that_dies_again_and_again_ends_the_job(service: Service) -> None:
    before = {p.pid for p in titled(ENGINE)}
    config = VLLMProcessorConfig(model=DEMO, batch_size=16, is_chat=False, max_engine_restarts=0)
    processor = build_llm_processor(config, preprocess=long_answers)
    dataset = processor(ray.data.range(400))
    kill_new_engines(before, lambda: ray.get(processor.progress.totals.remote()).rows, 1)
    with pytest.raises(Exception, match="so the job stops") as raised:
        dataset.take_all()
    assert EngineError.__name__ in repr(raised.value) or "engine" in str(raised.value).lower()
