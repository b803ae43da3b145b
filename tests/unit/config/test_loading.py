"""Loading: what a file means, and every fault of it in one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.config import BucketSource, HubSource, LocalSource, ModelConfig, load_app, load_model, model_from
from rayllm.config.scaling import canonical_accelerator
from rayllm.core.errors import ConfigError

MINIMAL = {"model_loading_config": {"model_id": "org/name"}}
OTHER = {"model_loading_config": {"model_id": "other"}}


def model(**keys: Any) -> ModelConfig:
    return model_from(MINIMAL | keys, "m.yaml", ())


def faults(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        model(**keys)
    return caught.value.message


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def test_the_smallest_file_is_a_model_of_the_hub() -> None:
    config = model()
    assert config.model_id == "org/name"
    assert config.source == HubSource(repo_id="org/name")
    assert (config.tensor_parallel_size, config.pipeline_parallel_size, config.max_ongoing_requests) == (1, 1, 256)


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        model().llm_engine = "other"  # type: ignore[assignment,misc]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("org/other", HubSource(repo_id="org/other")),
        ({"repo_id": "org/other", "revision": "v1"}, HubSource(repo_id="org/other", revision="v1")),
        ("/models/x", LocalSource(path="/models/x")),
        ("s3://bucket/x", BucketSource(bucket_uri="s3://bucket/x")),
        ({"bucket_uri": "gs://bucket/x"}, BucketSource(bucket_uri="gs://bucket/x")),
        ("s3://anonymous@bucket/x", BucketSource(bucket_uri="s3://bucket/x", anonymous=True)),
        ({"bucket_uri": "gs://anonymous@bucket/x"}, BucketSource(bucket_uri="gs://bucket/x", anonymous=True)),
        (
            {"bucket_uri": "s3://b/x", "s3_sync_args": ["--region", "us-west-2"]},
            BucketSource(bucket_uri="s3://b/x", s3_sync_args=("--region", "us-west-2")),
        ),
    ],
)
def test_forms_of_a_source(written: Any, meant: Any) -> None:
    assert model(model_loading_config={"model_id": "m", "model_source": written}).source == meant


def test_a_revision_belongs_to_the_hub() -> None:
    loading = {"model_id": "org/name", "revision": "abc"}
    assert model(model_loading_config=loading).source == HubSource(repo_id="org/name", revision="abc")
    assert "`revision` is for models on the HuggingFace hub" in faults(
        model_loading_config=loading | {"model_source": "s3://b/x"}
    )


@pytest.mark.parametrize(
    ("keys", "where", "expected"),
    [
        ({"engin_kwargs": {}}, "engin_kwargs", "did you mean `engine_kwargs`?"),
        ({"engine_kwargs": {"max_model_length": 5}}, "engine_kwargs", "did you mean `max_model_len`"),
        ({"engine_kwargs": {"zzz": 5}}, "engine_kwargs", "`zzz` is not an engine argument of vLLM"),
        ({"engine_kwargs": {"model": "x"}}, "engine_kwargs", "use model_loading_config.model_source"),
        ({"engine_kwargs": {"port": 1}}, "engine_kwargs", "an option of vLLM's own server"),
        ({"tensor_parallelism": {"degree": 0}}, "tensor_parallelism.degree", "greater than or equal to 1"),
        ({"tensor_parallelism": {"degre": 2}}, "tensor_parallelism.degre", "did you mean `degree`?"),
        ({"llm_engine": "TRT"}, "llm_engine", "vLLM"),
        ({"model_loading_config": {"model_id": "../x"}}, "model_loading_config.model_id", "begin with a letter"),
        ({"model_loading_config": {"model_id": "m", "model_source": "a/b/c"}}, "model_source", "begin a path with"),
        ({"model_loading_config": {"model_id": "m", "model_source": 7}}, "model_source", "valid"),
        ({"deployment_config": {"max_ongoing_request": 1}}, "deployment_config", "mean `max_ongoing_requests`?"),
        ({"deployment_config": {"placement_group_bundles": []}}, "deployment_config", "`placement_group_config`"),
        ({"deployment_config": {"num_replicas": 1, "autoscaling_config": {}}}, "deployment_config", "exclude each"),
        (
            {"deployment_config": {"autoscaling_config": {"min_replicas": 3, "max_replicas": 2}}},
            "deployment_config.autoscaling_config",
            "min_replicas (3) is above max_replicas (2)",
        ),
        ({"placement_group_config": {"bundles": [{"GPU": 1}]}, "tensor_parallelism": {"degree": 4}}, "bundles", "4 w"),
        ({"placement_group_config": {"bundle_per_worker": {"GPU": 2}}}, "placement_group_config", "at most 1 GPU"),
        (
            {"placement_group_config": {"bundle_per_worker": {"GPU": 0.5}}, "tensor_parallelism": {"degree": 2}},
            "placement_group_config",
            "cannot share a GPU",
        ),
        ({"runtime_env": {"env_vars": {"VLLM_DP_SIZE": "2"}}}, "runtime_env", "use deployment_config.num_replicas"),
        ({"engine_kwargs": {"data_parallel_backend": "ray"}}, "engine_kwargs", "use deployment_config.num_replicas"),
        ({"engine_kwargs": {"nnodes": 2}}, "engine_kwargs", "use placement_group_config.strategy"),
        ({"deployment_config": {"ray_actor_options": {"num_gpus": 1}}}, "ray_actor_options", "`placement_group"),
        ({"deployment_config": {"max_queued_requests": 0}}, "deployment_config.max_queued_requests", "greater than"),
        ({"engine_kwargs": {"tensor_parallel_size": "two"}}, "engine_kwargs", "a whole number of at least 1, not"),
        ({"engine_kwargs": {"tensor_parallel_size": 0}}, "engine_kwargs", "`tensor_parallel_size` must be a whole"),
        ({"engine_kwargs": {"max_model_len": 0}}, "engine_kwargs", "`max_model_len` must be at least 1, not 0"),
        ({"engine_kwargs": {"max_num_batched_tokens": -5}}, "engine_kwargs", "`max_num_batched_tokens` must be at"),
        ({"engine_kwargs": {"quantization": "gguf"}}, "engine_kwargs", "`quantization: gguf`: RayLLM does not load"),
        ({"engine_kwargs": {"dtype": "float7"}}, "engine_kwargs", "'float7' is not a type that vLLM computes in"),
        ({"engine_kwargs": {"dtype": ["float16"]}}, "engine_kwargs", "is not a type that vLLM computes in"),
        ({"engine_kwargs": {"max_num_seqs": None}}, "engine_kwargs", "a whole number of at least 1"),
        ({"engine_kwargs": {"data_parallel_size": 2}}, "engine_kwargs", "use deployment_config.num_replicas"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "runtime_env", "put numbers in quotes"),
        ({"placement_group_config": {}}, "placement_group_config", "exactly one of `bundles` and `bundle_per_worker`"),
        ({"tool_calling": {"parser": "hermess"}}, "tool_calling", "no parser `hermess`; did you mean `hermes`"),
        (
            {"prompt_format": {"system": "{instruction}", "assistant": "{instruction}", "user": "{instruction}"},
             "engine_kwargs": {"chat_template_content_format": "openai"}},
            "m.yaml",
            "leave `engine_kwargs.chat_template_content_format` out",
        ),
        (
            {"log_engine_metrics": True, "engine_kwargs": {"disable_log_stats": True}},
            "m.yaml",
            "`log_engine_metrics` needs the metrics that `engine_kwargs.disable_log_stats` turns off",
        ),
        ({"reasoning_parser": "deepseek"}, "reasoning_parser", "vLLM has no parser `deepseek`"),
        ({"tool_calling": {"auto": True}}, "tool_calling", "needs a `parser`"),
        ({"generation_config": {"stopping_sequences": [""]}}, "generation_config.stopping_sequences", "every request"),
        ({"generation_config": {"generate_kwargs": {"model": "x"}}}, "generate_kwargs", "belongs to each request"),
        ({"generation_config": {"generate_kwargs": {"stop": "x"}}}, "generate_kwargs", "use `stopping_sequences`"),
        ({"generation_config": {"generate_kwargs": {"temprature": 1}}}, "generate_kwargs", "mean `temperature`"),
        ({"max_request_context_length": 5, "engine_kwargs": {"max_model_len": 6}}, "m.yaml", "differ; keep one"),
        ({"tensor_parallelism": {"degree": 2}, "engine_kwargs": {"tensor_parallel_size": 4}}, "m.yaml", "differ"),
        (
            {"chat_template": "{{x}}", "prompt_format": {"system": "{instruction}", "assistant": "{instruction}",
             "user": "{instruction}"}},
            "m.yaml",
            "`chat_template` and `prompt_format` exclude each other",
        ),
        ({"prompt_format": {"system": "{instruction}", "assistant": "{", "user": "{instruction}"}}, "assistant", "{{"),
    ],
)  # fmt: skip
def test_each_fault_names_file_and_key_and_the_way_out(keys: dict[str, Any], where: str, expected: str) -> None:
    message = faults(**keys)
    assert message.startswith("m.yaml: ")
    assert where in message
    assert expected in message


def test_all_faults_are_told_at_once() -> None:
    message = faults(engin_kwargs={}, max_request_context_length=0, tensor_parallelism={"degree": 0})
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("A10", "A10"),
        ("A100_40G", "A100-40G"),
        ("a100-80g", "A100-80G"),
        ("geforce_rtx_4090", "GeForce-RTX-4090"),
        ("My_own", "My-own"),
    ],
)
def test_spellings_of_accelerators(spelling: str, name: str) -> None:
    assert model(accelerator_type=spelling).accelerator_type == name


def test_an_unknown_accelerator_is_taken_with_a_suggestion(caplog: pytest.LogCaptureFixture) -> None:
    canonical_accelerator.cache_clear()
    assert model(accelerator_type="A100_80B").accelerator_type == "A100-80B"
    assert "`A100_80B` may be no name that Ray gives a node; did you mean `A100-80G`?" in caplog.text


@pytest.mark.parametrize(("accelerator", "expected"), [("H100", 1024), ("B300", 1024), ("A100", 256), (None, 256)])
def test_large_gpus_take_as_many_requests_as_vllm_runs_on_them(accelerator: str | None, expected: int) -> None:
    assert model(accelerator_type=accelerator).max_ongoing_requests == expected


def test_aliases_agree_with_engine_arguments() -> None:
    config = model(engine_kwargs={"tensor_parallel_size": 4, "max_model_len": 100, "max_num_seqs": 7})
    assert (config.tensor_parallel_size, config.max_model_len, config.max_ongoing_requests) == (4, 100, 7)
    config = model(max_request_context_length=100, engine_kwargs={"max_model_len": 100})
    assert config.max_model_len == 100


def test_stops_inside_prompt_format_are_taken_as_the_source_page_prints_them() -> None:
    written = {"system": "{instruction}", "assistant": "{instruction}", "user": "{instruction}"}
    config = model(
        prompt_format=written | {"stopping_sequences": ["a", "b"], "stopping_tokens": [1]},
        generation_config={"stopping_sequences": ["b", "c"]},
    )
    assert config.generation_config.stopping_sequences == ("b", "c", "a")
    assert config.generation_config.stopping_tokens == (1,)
    assert config.generation_config.prompt_format is not None


def test_the_models_own_template_can_be_named() -> None:
    config = model(prompt_format={"use_hugging_face_chat_template": True})
    assert config.generation_config.prompt_format is None
    assert "use_hugging_face_chat_template" in faults(
        prompt_format={"use_hugging_face_chat_template": True, "user": "{instruction}"}
    )


def test_duplicate_keys_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.yaml", "model_loading_config:\n  model_id: a\n  model_id: b\n")
    with pytest.raises(ConfigError, match=r"m\.yaml: `model_id` is given twice, in lines 2 and 3; keep one"):
        load_model(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "not valid YAML: line 1"),
        ("- a", "must be a mapping"),
        ("", "not nothing"),
        ("a: !x 1", "not valid YAML"),
    ],
)
def test_broken_yaml(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_model(write(tmp_path / "m.yaml", text))


def test_paths_are_looked_for_beside_the_file_and_then_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "files" / "beside").mkdir(parents=True)
    for name, where in (("beside", tmp_path / "files" / "beside"), ("here", tmp_path / "here")):
        loading = {"model_id": "m", "model_source": f"./{name}"}
        config = load_model(write(tmp_path / "files" / "m.yaml", {"model_loading_config": loading}))
        assert config.source == LocalSource(path=str(where))
    path = write(tmp_path / "files" / "m.yaml", {"model_loading_config": {"model_id": "m", "model_source": "./none"}})
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    assert f"{tmp_path}/files/none or {tmp_path}/none" in caught.value.message
    assert "model_loading_config.model_source" in caught.value.message


@pytest.mark.parametrize(
    "keys", [{"chat_template": "none.jinja"}, {"tool_calling": {"parser": "x", "plugin": "none.py"}}]
)
def test_a_template_or_plugin_that_is_not_there_is_named(keys: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"m\.yaml: (chat_template|tool_calling\.plugin): no such file or folder: /here/"
    ):
        model_from(MINIMAL | keys, "m.yaml", (Path("/here"),))


def test_an_application_takes_files_folders_globs_and_mappings(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / "models" / f"{name}.yaml", {"model_loading_config": {"model_id": name}})
    write(tmp_path / "models" / "notes.txt", "not a model")
    inline = {"model_loading_config": {"model_id": "inline"}}

    def ids(*entries: Any) -> list[str]:
        return [m.model_id for m in load_app({"llm_configs": list(entries)}, tmp_path).models]

    assert ids("models") == ["a", "b", "c"]
    assert ids("models/[bc].yaml", inline) == ["b", "c", "inline"]
    assert ids("./models/a.yaml", yaml.safe_dump(inline)) == ["a", "inline"]


@pytest.mark.parametrize(
    "source",
    ["org/x-GGUF", "org/x:Q4_K_M", "org/x-GGUF:UD-IQ2_XXS", "org/x:BF16", "/m/x.Q8_0.gguf", "s3://b/x-gguf/", None],
)
def test_gguf_is_refused_by_name(source: str | None) -> None:
    message = faults(model_loading_config={"model_id": "m" if source else "org/x-GGUF", "model_source": source})
    assert f"`{source or 'org/x-GGUF'}` is GGUF, which RayLLM does not load; name a source with safetensors" in message


@pytest.mark.parametrize("source", ["/data/run:bf16", "/models/C:F32x", "s3://b/x:F16", "gs://b/m:Q4"])
def test_paths_with_a_colon_are_no_gguf(source: str) -> None:
    assert model_from({"model_loading_config": {"model_id": "m", "model_source": source}}, "m", ()).source


def test_a_length_may_be_left_to_vllm() -> None:
    assert model(engine_kwargs={"max_model_len": -1, "max_num_batched_tokens": "8k"}).engine_kwargs


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"accelerator_type": "${GPU:-A10G}"}, "accelerator_type: `${GPU:-A10G}` is not expanded here; write the"),
        ({"engine_kwargs": {"x": ["${TP}"]}}, "engine_kwargs.x.0: `${TP}` is not expanded here; write the value, or"),
        ({"lora_config": {"a": "s3://${env:B}/x"}}, "lora_config.a: `${env:B}` is not expanded here; write the value"),
        (
            {"runtime_env": {"env_vars": {"A": "${TOKEN:-none}"}}},
            "runtime_env.env_vars.A: `${TOKEN:-none}` is not expanded here; write `${env:TOKEN}`, which has no default",
        ),
    ],
)
def test_a_reference_that_nothing_expands_is_refused(keys: dict[str, Any], expected: str) -> None:
    assert faults(**keys).startswith(f"m.yaml: {expected}")


def test_references_that_something_expands_stay() -> None:
    env_vars = {"A": "${env:A}", "PATH": "/x:${PATH}"}
    template = "{{ x }}${y}"
    config = model(runtime_env={"env_vars": env_vars}, chat_template=template)
    assert (config.runtime_env["env_vars"], config.chat_template) == (env_vars, template)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, "args.llm_configs: must be a list"),
        ({"llm_configs": []}, "args.llm_configs: must be a list"),
        ({"llm_config": ["x"]}, "did you mean `llm_configs`?"),
        ({"llm_configs": ["none.yaml"]}, "args.llm_configs.0: no such file or folder"),
        ({"llm_configs": [7]}, "args.llm_configs.0: must be a path or a mapping"),
        ({"llm_configs": [MINIMAL, MINIMAL]}, "duplicate model id: org/name"),
        ({"llm_configs": [MINIMAL], "router": {"api_keys": "x"}}, "args.router: api_keys: unknown key"),
        ({"llm_configs": [MINIMAL], "router": {"model_aliases": {"a": "b"}}}, "no model has the id `b`"),
        (
            {"llm_configs": [MINIMAL], "router": {"model_aliases": {"org/name": "org/name"}}},
            "is the id of a model itself",
        ),
        (
            {"llm_configs": [MINIMAL], "router": {"cors": {"allow_origins": ["*"], "allow_credentials": True}}},
            "would trust every web page",
        ),
        (
            {"llm_configs": [MINIMAL], "router": {"allowed_hosts": ["https://chat.example.com"]}},
            "args.router: allowed_hosts.0: `https://chat.example.com` must be a host name or address",
        ),
        ({"llm_configs": [MINIMAL], "router": {"allowed_hosts": ["[::1]"]}}, "without scheme, port and brackets"),
        ({"llm_configs": [MINIMAL], "router": {"allowed_hosts": ["*"]}}, "`*` must be a host name"),
        (
            {"llm_configs": [MINIMAL], "router": {"trusted_proxies": ["10.0.0.1/8"]}},
            "must be an address or a network, such as `10.0.0.0/8`: 10.0.0.1/8 has host bits set",
        ),
        ({"llm_configs": [MINIMAL], "router": {"trusted_proxies": ["*"]}}, "trusted_proxies.0: must be an address"),
        ({"llm_configs": [MINIMAL], "router": {"open_paths": ["/v1/usage"]}}, "router: open_paths.0: "),
        ({"llm_configs": [MINIMAL], "router": {"fallbacks": {"org/name": ["b"]}}}, "no model has the id `b`"),
        (
            {"llm_configs": [MINIMAL], "router": {"fallbacks": {"org/name": ["org/name"]}}},
            "router.fallbacks.org/name: `org/name` cannot be its own fallback",
        ),
        (
            {"llm_configs": [MINIMAL, OTHER], "router": {"fallbacks": {"org/name": ["other", "other"]}}},
            "router.fallbacks.org/name: `other` is listed twice",
        ),
        (
            {"llm_configs": [MINIMAL], "router": {"guards": [{"model": "x", "verdict": "llama_guard"}]}},
            "router.guards.0.model: no model has the id `x`",
        ),
        (
            {"llm_configs": [MINIMAL], "router": {"guards": 2 * [{"model": "org/name", "verdict": "llama_guard"}]}},
            "router.guards.1.model: `org/name` is a guard already",
        ),
        (
            {
                "llm_configs": [MINIMAL],
                "router": {
                    "guards": [{"model": "org/name", "verdict": "llama_guard"}],
                    "batches": {"storage": "/x", "execution": "engines"},
                },
            },
            "so `guards` would not see them",
        ),
        (
            {"llm_configs": [MINIMAL], "router": {"admin_keys": ["${ADMIN}"]}},
            "args.router.admin_keys.0: `${ADMIN}` is not expanded here; write `${env:ADMIN}`",
        ),
        ({"llm_configs": [MINIMAL], "router": {"batches": {}}}, "batches.storage: is required"),
        ({"llm_configs": [MINIMAL], "router": {"batches": {"storage": "hf://x/y"}}}, "must be a path, s3://bucket"),
        ({"llm_configs": [MINIMAL], "router": {"batches": {"storage": ""}}}, "must be a path, s3://bucket"),
        ({"llm_configs": [MINIMAL], "router": {"batches": {"storage": "s3:///x"}}}, "must be a path, s3://bucket"),
        (
            {"llm_configs": [MINIMAL], "router": {"batches": {"storage": "/x", "execution": "engine"}}},
            "batches.execution",
        ),
    ],
)
def test_faults_of_an_application(args: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_app(args, tmp_path)
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("s3://bucket/batches", "s3://bucket/batches"),
        ("gs://bucket/batches", "gs://bucket/batches"),
        ("/mnt/batches", "/mnt/batches"),
        ("~/batches", "{home}/batches"),
        ("there", "{files}/there"),
        ("../here", "{root}/here"),
        ("both", "{files}/both"),
        ("elsewhere", "{cwd}/elsewhere"),
        ("nowhere/yet", "{files}/nowhere/yet"),
    ],
)
def test_a_folder_to_write_to_is_found_or_placed_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    files, cwd = tmp_path / "files", tmp_path / "cwd"
    for folder in (files / "there", files / "both", cwd / "both", cwd / "elsewhere"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(cwd)
    args = {"llm_configs": [MINIMAL], "router": {"batches": {"storage": written}}}
    batches = load_app(args, files).router.batches
    assert batches is not None
    assert batches.storage == meant.format(home=Path.home(), root=tmp_path, files=files, cwd=cwd)
    assert args["router"] == {"batches": {"storage": written}}


def test_faults_of_several_files_are_told_together(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.yaml", MINIMAL | {"nope": 1})
    with pytest.raises(ConfigError) as caught:
        load_app({"llm_configs": ["a.yaml", "b.yaml", "c.yaml"], "router": {"x": 1}}, tmp_path)
    lines = caught.value.message.splitlines()
    assert [line.split(": ")[0].rpartition("/")[2] for line in lines] == [
        "a.yaml",
        "b.yaml",
        "args.llm_configs.2",
        "args.router",
    ]


def test_the_missing_files_message_names_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_app({"llm_configs": ["m.yaml"]}, tmp_path / "serve")
    assert f"{tmp_path}/serve/m.yaml or {tmp_path}/m.yaml" in caught.value.message
