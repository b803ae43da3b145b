"""Conversion of older model files: what loads, what is reported, what is refused."""

from __future__ import annotations

import logging
from copy import deepcopy
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.config import BucketSource, ModelConfig, load_model
from rayllm.config.legacy import Changes, upgrade
from rayllm.config.yaml import dump_yaml
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion import Report, convert_files
from rayllm.deploy.conversion.formats import Format
from rayllm.deploy.conversion.model import Draft, convert_model
from tests.unit.deploy.conversion.forms import (
    CURRENT,
    EARLY,
    MODELS,
    RAY_SERVE_LLM,
    TOKEN,
    Mapping,
)


def convert(raw: Mapping, folder: Path) -> tuple[Mapping, Report]:
    """The converted mapping of one file, and the notes about it."""
    file = folder / "old.yaml"
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    [report] = convert_files([file])
    return yaml.safe_load(report.text), report


def converted(raw: Mapping, folder: Path) -> ModelConfig:
    config, _ = convert(raw, folder)
    file = folder / "new.yaml"
    file.write_text(dump_yaml(config))
    return load_model(file)


def findings_of(report: Report, kind: str) -> dict[str, str]:
    return {note.key: note.text for note in report.changes if note.kind == kind}


def minimal(**keys: Any) -> Mapping:
    return {"model_loading_config": {"model_id": "m"}, **keys}


@pytest.mark.parametrize("raw", MODELS.values(), ids=MODELS.keys())
def test_the_result_loads_without_a_warning(raw: Mapping, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = deepcopy(raw)
    config, report = convert(raw, tmp_path)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        converted(raw, tmp_path)
    assert not caplog.messages
    upgrade(config, changes := Changes())
    assert changes.all == []
    assert report.form != Format.CURRENT
    assert raw == before


def test_a_file_of_rayllm_1(tmp_path: Path) -> None:
    model = converted(EARLY, tmp_path)
    assert isinstance(model.source, BucketSource)
    assert model.source.s3_sync_args == ("--region", "us-west-2", "--no-sign-request")
    assert [extra.destination_path for extra in model.source.extra_files] == ["extra"]
    assert (model.accelerator_type, model.tensor_parallel_size, model.max_model_len) == ("A100-40G", 2, 2048)
    speculation = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 3}
    assert model.engine_kwargs == {"trust_remote_code": True, "speculative_config": speculation}
    assert model.generation_config.generate_kwargs == {"temperature": 0.4, "max_tokens": 256}
    assert model.max_ongoing_requests == 64
    prompt_format = model.generation_config.prompt_format
    assert prompt_format is not None
    assert (prompt_format.tools_list, prompt_format.tool_calls) == ("[TOOLS] {tools}", "[CALLS] {tool_call}")
    assert prompt_format.assistant == "{instruction}</s>"
    assert model.lora_config is not None
    assert model.lora_config.dynamic_lora_loading_path == "s3://b/adapters/"
    assert model.lora_config.download_timeout_s is None
    scaling = model.deployment_config.autoscaling_config
    assert scaling is not None
    assert (scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas) == (0, 1, 100)
    assert (scaling.target_ongoing_requests, scaling.upscaling_factor) == (32, 0.6)


def test_what_rayllm_1_had_and_is_gone(tmp_path: Path) -> None:
    _, report = convert(EARLY, tmp_path)
    lost, renamed = findings_of(report, "not_carried"), findings_of(report, "renamed")
    for key in (
        "input_modality",
        "json_mode",
        "model_loading_config.anytensor_config",
        "engine_kwargs.tokenizer_pool_size",
        "engine_kwargs.max_num_batched_tokens",
        "generation.generate_kwargs.do_sample",
        "generation.prompt_format.tools_list_in_user",
        "runtime_env.env_vars.ANYSCALE_VLLM_USE_V2",
    ):
        assert lost[key].startswith("is not carried over: ")
    assert "`--exclude`" in lost["model_loading_config.model_source.s3_sync_args"]
    assert renamed["generation"] == "is now `generation_config`"
    assert "generation.generate_kwargs.max_new_tokens" in renamed
    assert "`A100-40G`" in renamed["accelerator_type"]
    assert "`{tools}`" in renamed["generation.prompt_format.tools_list"]


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        ({}, {"min_replicas": 1, "max_replicas": 100}),
        ({"autoscaling_config": {"max_replicas": 2}}, {"max_replicas": 2}),
        ({"autoscaling_config": None}, None),
        ({"num_replicas": 3}, None),
    ],
)
def test_rayllm_1_scaled_by_itself(deployment: Mapping, expected: Mapping | None, tmp_path: Path) -> None:
    config, _ = convert(minimal(input_modality="text", deployment_config=deployment), tmp_path)
    assert config.get("deployment_config", {}).get("autoscaling_config") == expected


@pytest.mark.parametrize(
    ("autoscaling", "target"),
    [
        ({"target_num_ongoing_requests_per_replica": 5, "target_ongoing_requests": 9}, 9),
        ({"target_num_ongoing_requests_per_replica": 5, "target_ongoing_requests": 0}, 5),
        ({"target_ongoing_requests": 0}, None),
    ],
)
def test_of_two_targets_the_newer_counts_unless_it_is_0(
    autoscaling: Mapping, target: int | None, tmp_path: Path
) -> None:
    raw = minimal(input_modality="text", deployment_config={"autoscaling_config": autoscaling})
    config, _ = convert(raw, tmp_path)
    assert config["deployment_config"]["autoscaling_config"].get("target_ongoing_requests") == target


@pytest.mark.parametrize("generation", [{"prompt_format": None}, {"prompt_format": None, "stopping_sequences": ["x"]}])
def test_chat_that_was_switched_off_is_told(generation: Mapping, tmp_path: Path) -> None:
    _, report = convert(minimal(generation=generation), tmp_path)
    assert "null switched chat off" in findings_of(report, "not_carried")["generation.prompt_format"]


@pytest.mark.parametrize(
    "prompt_format", [{"use_hf_chat_templates": True}, {"use_hugging_face_chat_template": True}, {"vision": True}]
)
def test_a_models_own_template_is_the_default(prompt_format: Mapping, tmp_path: Path) -> None:
    config, _ = convert(minimal(generation={"prompt_format": prompt_format}), tmp_path)
    assert "generation_config" not in config


def test_a_file_of_ray_serve_llm(tmp_path: Path) -> None:
    model = converted(RAY_SERVE_LLM, tmp_path)
    assert model.source == BucketSource(bucket_uri="s3://b/chat-1b", anonymous=True)
    assert model.accelerator_type == "A10"
    assert model.engine_kwargs == {"max_model_len": 8192}
    assert model.tool_calling is not None
    assert (model.tool_calling.parser, model.tool_calling.auto, model.reasoning_parser) == ("hermes", True, "qwen3")
    assert model.lora_config is not None
    assert [(each.name, each.path) for each in model.lora_config.lora_modules] == [("sql", "s3://b/sql")]
    assert model.lora_config.max_num_adapters_per_replica == 8
    assert model.placement_group_config is not None
    assert model.placement_group_config.strategy == "PACK"
    scaling = model.deployment_config.autoscaling_config
    assert scaling is not None
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 3)
    assert model.deployment_config.max_queued_requests is None


def test_what_ray_serve_llm_has_and_rayllm_has_not(tmp_path: Path) -> None:
    _, report = convert(RAY_SERVE_LLM, tmp_path)
    lost = findings_of(report, "not_carried")
    for key in (
        "accelerator_config",
        "callback_config",
        "deployment_config.max_queued_requests",
        "deployment_config.name",
        "deployment_config.ray_actor_options.num_gpus",
        "deployment_config.request_router_config.request_router_kwargs",
        "engine_kwargs.api_key",
        "engine_kwargs.distributed_executor_backend",
        "engine_kwargs.swap_space",
        "experimental_configs.num_ingress_replicas",
        "experimental_configs.stream_batching_interval_ms",
        "server_cls",
    ):
        assert lost[key].startswith("is not carried over: ")
    said = lost["deployment_config.request_router_config.request_router_class"]
    assert "`args.router.routing: prefix_aware`" in said


@pytest.mark.parametrize(
    ("engine_kwargs", "expected"),
    [
        ({"tool_call_parser": "hermes"}, {"tool_calling": {"parser": "hermes", "auto": False}}),
        ({"chat_template": "{{ messages }}"}, {"chat_template": "{{ messages }}"}),
        ({"default_chat_template_kwargs": {"a": 1}}, {"chat_template_kwargs": {"a": 1}}),
        ({"task": "embedding"}, {"task": "embed"}),
        ({"task": "transcription"}, {}),
        ({"revision": "v2"}, {"model_loading_config": {"model_id": "m", "revision": "v2"}}),
        ({"tokenizer": "org/t"}, {"model_loading_config": {"model_id": "m", "tokenizer_source": "org/t"}}),
        ({"data_parallel_size": 2}, {}),
        ({"hf_token": True}, {}),
        ({"lora_modules": ["a=org/b"]}, {"lora_config": {"lora_modules": ["a=org/b"]}}),
        ({"max_model_len": 4, "no_such": 1}, {"engine_kwargs": {"max_model_len": 4}}),
    ],
)
def test_arguments_of_vllm_that_rayllm_says_elsewhere(
    engine_kwargs: Mapping, expected: Mapping, tmp_path: Path
) -> None:
    config, report = convert(minimal(experimental_configs={}, engine_kwargs=engine_kwargs), tmp_path)
    assert config == minimal() | expected
    moved = engine_kwargs.keys() - {"max_model_len"}
    assert {f"engine_kwargs.{name}" for name in moved} <= {note.key for note in report.changes}


def test_where_a_key_is_now(tmp_path: Path) -> None:
    arguments = {"task": "embed", "tokenizer": "org/t"}
    _, report = convert(minimal(experimental_configs={}, engine_kwargs=arguments), tmp_path)
    assert findings_of(report, "renamed") == {
        "engine_kwargs.task": "is now `task` at the top of the model's file",
        "engine_kwargs.tokenizer": "is now `model_loading_config.tokenizer_source`",
    }


def test_names_of_adapters_with_a_slash(tmp_path: Path) -> None:
    modules = ["org/a=org/a-lora", {"name": "org/b", "path": "s3://b/b"}]
    config, report = convert(minimal(experimental_configs={}, engine_kwargs={"lora_modules": modules}), tmp_path)
    expected = ["org--a=org/a-lora", {"name": "org--b", "path": "s3://b/b"}]
    assert config["lora_config"]["lora_modules"] == expected
    texts = [change.text for change in report.changes if change.key == "engine_kwargs.lora_modules"]
    assert "has `org--a` for `org/a`: clients send that" in texts


def test_the_downloader_of_ray_serve_llm_is_extra_files(tmp_path: Path) -> None:
    callback = {
        "callback_class": "ray.llm._internal.common.callbacks.cloud_downloader.CloudDownloader",
        "callback_kwargs": {"paths": [["s3://b/cache", "/cache"]]},
    }
    loading = {"model_id": "m", "model_source": "s3://b/m"}
    config, report = convert({"model_loading_config": loading, "callback_config": callback}, tmp_path)
    extra = [{"bucket_uri": "s3://b/cache", "destination_path": "/cache"}]
    assert config["model_loading_config"]["model_source"] == {"bucket_uri": "s3://b/m", "extra_files": extra}
    assert "callback_config" in findings_of(report, "renamed")
    _, report = convert(minimal(callback_config=callback), tmp_path)
    assert "callback_config" in findings_of(report, "not_carried")


def test_bundles_of_the_first_releases_of_ray_serve_llm(tmp_path: Path) -> None:
    config, _ = convert(minimal(resources_per_bundle={"GPU": 1, "rack": 1}), tmp_path)
    assert config["placement_group_config"] == {"bundle_per_worker": {"GPU": 1, "rack": 1}}


@pytest.mark.parametrize("raw", [EARLY, RAY_SERVE_LLM], ids=["rayllm-1", "ray.serve.llm"])
def test_secrets_are_not_written(raw: Mapping, tmp_path: Path) -> None:
    config, report = convert(raw, tmp_path)
    everything = yaml.safe_dump(config) + str(report.changes)
    for secret in (TOKEN, "user:pass", "whoever-knows-this", "insert your token"):
        assert secret not in everything
    assert findings_of(report, "secret")


def test_references_stand_in_the_place_of_secrets(tmp_path: Path) -> None:
    config, report = convert(RAY_SERVE_LLM, tmp_path)
    assert config["runtime_env"] == {
        "env_vars": {"HF_TOKEN": "${env:HF_TOKEN}", "TOKENIZERS_PARALLELISM": "false"},
        "pip": ["--index-url https://${env:PYPI_EXAMPLE_COM_CREDENTIALS}@pypi.example.com/simple"],
    }
    assert "export HF_TOKEN before you deploy" in findings_of(report, "secret")["runtime_env.env_vars.HF_TOKEN"]
    assert "PYPI_EXAMPLE_COM_CREDENTIALS" in findings_of(report, "secret")["runtime_env.pip.0"]


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "x"}, {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_x", "OPENAI_API_KEY": "x"}, {"HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY"}),
        ({"MINE": TOKEN, "DB_PASSWORD": "x"}, {"MINE", "DB_PASSWORD"}),
        ({"VLLM_MAX_TOKENS": "5", "TOKENIZERS_PARALLELISM": "false", "HF_HOME": "/x"}, set()),
        ({"HF_TOKEN": "${env:HF_TOKEN}", "WANDB_API_KEY": ""}, set()),
    ],
)
def test_which_variables_are_secret(variables: Mapping, names: set[str], tmp_path: Path) -> None:
    config, report = convert(minimal(runtime_env={"env_vars": variables}), tmp_path)
    expected = variables | {name: f"${{env:{name}}}" for name in names}
    assert config["runtime_env"]["env_vars"] == expected
    assert findings_of(report, "secret").keys() == {f"runtime_env.env_vars.{name}" for name in names}


def test_a_secret_where_no_reference_is_read_is_refused(tmp_path: Path) -> None:
    source = {"bucket_uri": "s3://b/m", "s3_aws_credentials": {"create_aws_credentials_url": "https://a:b@c/"}}
    with pytest.raises(ConfigError, match="create_aws_credentials_url: holds a secret") as raised:
        convert({"model_loading_config": {"model_id": "m", "model_source": source}}, tmp_path)
    assert "a:b" not in raised.value.message


def test_a_file_of_today_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "today.yaml"
    file.write_text("# A comment.\nmodel_loading_config: {model_id: m}\n")
    [report] = convert_files([file])
    assert (report.to, report.text) == (None, file.read_text())
    assert (report.form, report.changes, report.is_as_it_was) == (Format.CURRENT, (), True)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            EARLY | {"generation": {"prompt_format": {"user": "{instruction}"}}},
            "generation.prompt_format.system: is required",
        ),
        (RAY_SERVE_LLM | {"accelerator_type": "${GPU:-L4}"}, "accelerator_type: `${GPU:-L4}` is not expanded here; "),
        (RAY_SERVE_LLM | {"engine_kwargs": {"tensor_parallel_size": 0}}, "`tensor_parallel_size` must be a whole"),
        (
            RAY_SERVE_LLM | {"model_loading_config": {"model_id": "m", "model_source": "org/m:Q4_K_M"}},
            "model_loading_config.model_source.repo_id: `org/m:Q4_K_M` is GGUF",
        ),
        (EARLY | {"lora_confg": {}}, "lora_confg: unknown key; did you mean `lora_config`?"),
        (EARLY | {"lora_config": {"dynamic_lora_loading_path": "azure://b/x"}}, "`azure://b/x` must be a folder"),
        (RAY_SERVE_LLM | {"accelerator_config": {"kind": "tpu"}}, "accelerator_config: TPUs are not carried over"),
        (RAY_SERVE_LLM | {"accelerator_type": "TPU-V6E"}, "TPUs are not carried over"),
        (RAY_SERVE_LLM | {"server_cls": "x:SGLangServer"}, "server_cls: SGLang is not carried over"),
        (RAY_SERVE_LLM | {"server_cls": "x:PDDecodeServer"}, "server_cls: prefill and decode are not split"),
        (
            RAY_SERVE_LLM | {"deployment_config": {"placement_group_bundles": [{"GPU": 1}]}},
            "use the top-level key `placement_group_config`",
        ),
        (
            RAY_SERVE_LLM | {"model_loading_config": {"model_id": "m", "model_source": {"bucket_uri": "abfss://x/y"}}},
            "must begin with s3://bucket or gs://bucket",
        ),
        (
            RAY_SERVE_LLM | {"engine_kwargs": {"chat_template": "./none.jinja"}},
            "engine_kwargs.chat_template: no such file or folder",
        ),
        (
            {"engine_config": {"model_id": "m"}, "scaling_config": {}},
            "engine_config: this is a model's file of RayLLM 0",
        ),
        ({"base_model_id": "m", "model_id": "m:a"}, "base_model_id: this is an adapter's file of Private Endpoints"),
        ({"models": []}, "is neither a model nor a serve config"),
    ],
)
def test_faults_are_told_by_the_keys_of_the_file(raw: Mapping, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        convert(raw, tmp_path)
    assert said in raised.value.message
    assert raised.value.message.startswith(str(tmp_path / "old.yaml"))


@pytest.mark.parametrize("text", ["a: [1", "a: 1\na: 2", "- 1\n", ""])
def test_what_is_no_mapping_is_a_fault(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml: "):
        convert_files([tmp_path / "x.yaml"])


def places(value: Any) -> list[tuple[Any, ...]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(), *((key, *below) for key, item in items for below in places(item))]


def replaced(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    copied = value.copy()
    copied[place[0]] = replaced(value[place[0]], place[1:], by)
    return copied


@pytest.mark.parametrize("raw", MODELS.values(), ids=MODELS.keys())
def test_anything_in_the_place_of_anything_is_converted_or_refused(raw: Mapping) -> None:
    junk = cycle([None, "x", -1, [[1]], {"a": None}, {}])
    for place in places(raw):
        try:
            once = convert_model(Draft(Path("old.yaml"), replaced(raw, place, next(junk)), ()), None)
        except ConfigError:
            continue
        twice = convert_model(Draft(Path("new.yaml"), once.config, ()), None)
        assert (twice.form, twice.config, twice.changes) == (Format.CURRENT, once.config, ()), place


def test_current_is_the_form_of_what_shipped() -> None:
    shipped = sorted((Path(__file__).parents[4] / "models").glob("*.yaml"))
    reports = convert_files(shipped, Path("nowhere"))
    assert all(report.form is Format.CURRENT for report in reports)


def test_a_prompt_format_at_the_top_stays(tmp_path: Path) -> None:
    templates = {"system": "{instruction}", "user": "{instruction}", "assistant": "{instruction}"}
    secret = {"runtime_env": {"env_vars": {"HF_TOKEN": TOKEN}}}
    model = converted(CURRENT | {"prompt_format": templates} | secret, tmp_path)
    assert model.generation_config.prompt_format is not None


def test_aliases_of_yaml_are_written_out(tmp_path: Path) -> None:
    shared = {"env_vars": {"HF_TOKEN": TOKEN, "A": "b"}}
    raw = minimal(input_modality="text", runtime_env=shared)
    raw["deployment_config"] = {"ray_actor_options": {"runtime_env": shared}}
    file = tmp_path / "aliases.yaml"
    file.write_text(yaml.safe_dump(raw))
    assert "&id001" in file.read_text()
    [report] = convert_files([file])
    text = report.text
    assert "&id001" not in text
    assert text.count("${env:HF_TOKEN}") == 2


def test_a_model_of_today_with_a_secret_is_rewritten(tmp_path: Path) -> None:
    config, report = convert(CURRENT | {"runtime_env": {"env_vars": {"HF_TOKEN": TOKEN}}}, tmp_path)
    assert config == CURRENT | {"runtime_env": {"env_vars": {"HF_TOKEN": "${env:HF_TOKEN}"}}}
    assert (report.form, report.is_as_it_was) == (Format.CURRENT, False)
