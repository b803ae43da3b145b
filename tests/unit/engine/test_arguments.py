"""vLLM's arguments for a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayllm.config import model_from
from rayllm.core.errors import ConfigError
from rayllm.engine.arguments import VllmArguments, Workers, vllm_arguments


def arguments(workers: Workers = "cpu", tokenizer: Path | None = None, **keys: Any) -> VllmArguments:
    model = model_from({"model_loading_config": {"model_id": "m"}} | keys, "m.yaml", ())
    return vllm_arguments(model, model.streamed_from or "/w", tokenizer, ("m", "alias"), workers)


def test_the_folder_is_loaded_and_the_names_are_served() -> None:
    engine = arguments(tokenizer=Path("/t")).engine
    assert (engine["model"], engine["tokenizer"], engine["served_model_name"]) == ("/w", "/t", ["m", "alias"])


def test_a_bucket_is_streamed_where_that_is_asked_for() -> None:
    streamed = {"engine_kwargs": {"load_format": "runai_streamer"}}
    source = {"model_id": "m", "model_source": "s3://b/m"}
    assert arguments(model_loading_config=source, **streamed).engine["model"] == "s3://b/m"
    assert arguments(model_loading_config=source).engine["model"] == "/w"
    options = {"model_id": "m", "model_source": {"bucket_uri": "s3://b/m", "anonymous": True}}
    with pytest.raises(ConfigError, match=r"model_source\.anonymous: vLLM's streamer does not support it"):
        arguments(model_loading_config=options, **streamed)


def test_a_models_own_code_runs_only_where_its_file_says_so() -> None:
    assert not arguments().engine.get("trust_remote_code")
    assert arguments(engine_kwargs={"trust_remote_code": True}).engine["trust_remote_code"]


@pytest.mark.parametrize(
    ("workers", "extension"),
    [
        ("cpu", "rayllm.engine.vllm.cpu_lora_patches.CpuLoraWorker"),
        ("gpu", "rayllm.engine.vllm.lora_worker.LoraWorker"),
        ("ray", "rayllm.engine.vllm.lora_worker.LoraWorker"),
    ],
)
def test_all_workers_of_a_model_with_adapters_can_check_them(workers: Workers, extension: str) -> None:
    engine = arguments(workers, lora_config={"dynamic_lora_loading_path": "/adapters"}).engine
    assert (engine["enable_lora"], engine["worker_extension_cls"]) == (True, extension)
    assert "worker_extension_cls" not in arguments(workers).engine


def test_another_extension_of_workers_is_refused_with_adapters() -> None:
    own = {"engine_kwargs": {"worker_extension_cls": "mine.Extension"}}
    assert arguments(**own).engine["worker_extension_cls"] == "mine.Extension"
    with pytest.raises(ConfigError, match="remove `worker_extension_cls` or the lora_config"):
        arguments(lora_config={"dynamic_lora_loading_path": "/adapters"}, **own)


@pytest.mark.parametrize(("workers", "executor"), [("ray", "ray"), ("cpu", "mp"), ("gpu", "uni")])
def test_workers_run_where_they_are_placed(workers: Workers, executor: str) -> None:
    assert arguments(workers).engine["distributed_executor_backend"] == executor


def test_a_cpu_worker_that_binds_no_threads_runs_in_the_engines_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def executor(threads: str, **keys: Any) -> str:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", threads)
        return str(arguments(**keys).engine["distributed_executor_backend"])

    assert executor("nobind").endswith(".UniProcExecutor")
    assert executor("auto") == "mp"
    assert executor("nobind", tensor_parallelism={"degree": 2}) == "mp"


HALF = {"bundle_per_worker": {"GPU": 0.5}}


@pytest.mark.parametrize(
    ("workers", "keys", "utilization"),
    [
        ("ray", {}, None),
        ("ray", {"placement_group_config": HALF}, 0.46),
        ("gpu", {"placement_group_config": {"bundle_per_worker": {"GPU": 0.3}}}, 0.276),
        ("ray", {"placement_group_config": {"bundles": [{"CPU": 1}, {"GPU": 0.25}]}}, 0.23),
        ("ray", {"placement_group_config": {"bundle_per_worker": {"GPU": 1, "rack": 1}}}, None),
        ("ray", {"placement_group_config": HALF, "engine_kwargs": {"gpu_memory_utilization": 0.3}}, 0.3),
        ("cpu", {"placement_group_config": HALF}, None),
    ],
)
def test_an_engine_takes_the_memory_of_its_share_of_a_gpu(
    workers: Workers, keys: dict[str, Any], utilization: float | None
) -> None:
    assert arguments(workers, **keys).engine.get("gpu_memory_utilization") == utilization


def test_aliases_become_engine_arguments() -> None:
    engine = arguments(
        max_request_context_length=99, tensor_parallelism={"degree": 2}, pipeline_parallelism={"degree": 3}
    ).engine
    assert (engine["max_model_len"], engine["tensor_parallel_size"], engine["pipeline_parallel_size"]) == (99, 2, 3)


def test_tools_and_reasoning() -> None:
    made = arguments(tool_calling={"parser": "hermes", "plugin": "/p.py"}, reasoning_parser="qwen3")
    assert made.server == {
        "enable_prompt_tokens_details": True,
        "tool_call_parser": "hermes",
        "enable_auto_tool_choice": True,
        "tool_parser_plugin": "/p.py",
    }
    assert made.engine["reasoning_parser"] == "qwen3"


@pytest.mark.parametrize(
    ("task", "runner"),
    [("generate", {"runner": "generate"}), ("embed", {"runner": "pooling", "convert": "embed"})],
)
def test_a_task_is_a_runner(task: str, runner: dict[str, str]) -> None:
    assert arguments(task=task).engine.items() >= runner.items()


def test_server_options_in_engine_kwargs_reach_the_server() -> None:
    made = arguments(engine_kwargs={"enable_prompt_tokens_details": False, "max_num_seqs": 3})
    assert made.server == {"enable_prompt_tokens_details": False}
    assert made.engine["max_num_seqs"] == 3
