"""Old spellings load with a warning that names the new key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayllm.config import ModelConfig, load_serve_file, model_from
from rayllm.config.legacy import Changes, upgrade
from rayllm.core.errors import ConfigError

FUNCTION_CALLING_TEMPLATE: dict[str, Any] = {
    "runtime_env": {"env_vars": {"HUGGING_FACE_HUB_TOKEN": "${env:HF_TOKEN}"}},
    "model_loading_config": {"model_id": "meta-llama/Meta-Llama-3.1-8B-Instruct"},
    "generation_config": {
        "prompt_format": {
            "bos": "<|begin_of_text|>",
            "system": "S{instruction}",
            "assistant": "A{instruction}",
            "user": "U{instruction}",
            "trailing_assistant": "A",
            "system_in_user": False,
            "default_system_message": "",
        },
        "stopping_sequences": ["<|end_of_text|>", "<|eot_id|>"],
    },
    "input_modality": "text",
    "llm_engine": "VLLMEngine",
    "engine_kwargs": {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "tokenizer_pool_size": 2,
        "tokenizer_pool_extra_config": {"runtime_env": {"pip": None}},
        "trust_remote_code": True,
    },
    "max_request_context_length": 8192,
    "accelerator_type": "A10G",
    "tensor_parallelism": {"degree": 1},
    "deployment_config": {"autoscaling_config": {"target_ongoing_requests": 32}, "max_ongoing_requests": 64},
    "json_mode": {"enabled": True},
    "lora_config": None,
}


def load(raw: dict[str, Any], caplog: pytest.LogCaptureFixture) -> tuple[ModelConfig, str]:
    with caplog.at_level("WARNING"):
        return model_from(raw, "old.yaml", ()), caplog.text


def test_a_file_of_rayllm_1(caplog: pytest.LogCaptureFixture) -> None:
    config, warnings = load(FUNCTION_CALLING_TEMPLATE, caplog)
    assert config.max_model_len == 8192
    assert config.max_ongoing_requests == 64
    assert config.lora_config is None
    for expected in (
        "`input_modality` is ignored",
        "`json_mode` is ignored",
        "`engine_kwargs.tokenizer_pool_size` is ignored",
    ):
        assert expected in warnings


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"generation": {"stopping_sequences": ["x"]}}, "`generation` is now `generation_config`"),
        ({"generation_config": {"stopping_sequences": ["x", 2, [3]]}}, "`generation_config.stopping_tokens`"),
        ({"enabled": True}, "list the models you want in the serve config"),
        ({"engine_kwargs": {"enable_cuda_graph": True}}, "engine_kwargs.enforce_eager"),
        ({"prompt_format": {"use_hf_chat_templates": True}}, "use_hugging_face_chat_template"),
        ({"engine_kwargs": {"guided_decoding_backend": "xgrammar"}}, "structured_outputs_config.backend"),
        ({"engine_kwargs": {"override_pooler_config": {"dimensions": 3}}}, "`engine_kwargs.pooler_config`"),
        ({"deployment_config": {"max_concurrent_queries": 3}}, "`deployment_config.max_ongoing_requests`"),
        (
            {"deployment_config": {"max_concurrent_queries": 3, "max_ongoing_requests": 5}},
            "`deployment_config.max_concurrent_queries` is ignored",
        ),
        (
            {"engine_kwargs": {"speculative_model": "[ngram]", "num_speculative_tokens": 3}},
            "`engine_kwargs.speculative_model` is now `engine_kwargs.speculative_config.method`",
        ),
        (
            {"runtime_env": {"env_vars": {"ANYSCALE_VLLM_USE_V2": "1"}}},
            "`runtime_env.env_vars.ANYSCALE_VLLM_USE_V2` is ignored",
        ),
        (
            {"deployment_config": {"autoscaling_config": {"max_replicas": 1, "smoothing_factor": 0.5}}},
            "`deployment_config.autoscaling_config.smoothing_factor` is now "
            "`deployment_config.autoscaling_config.upscaling_factor`",
        ),
    ],
)
def test_each_renaming_is_told(raw: dict[str, Any], expected: str, caplog: pytest.LogCaptureFixture) -> None:
    _, warnings = load({"model_loading_config": {"model_id": "m"}} | raw, caplog)
    assert expected in warnings


def test_tools_of_an_early_prompt_format(caplog: pytest.LogCaptureFixture) -> None:
    prompt_format = {
        "system": "{instruction}",
        "user": "{tools_list}{instruction}",
        "assistant": "{tool_calls}{instruction}",
        "tools_list": "T {instruction}",
        "tool_calls": "C {instruction}",
        "tool": "R {instruction}",
        "tools_list_in_last_user": True,
    }
    raw = {"model_loading_config": {"model_id": "m"}, "generation": {"prompt_format": prompt_format}}
    config, warnings = load(raw, caplog)
    found = config.generation_config.prompt_format
    assert found is not None
    assert (found.assistant, found.tools_list, found.tool_calls) == ("{instruction}", "T {tools}", "C {tool_call}")
    assert "`generation.prompt_format.tools_list` is rewritten: its placeholder is `{tools}`" in warnings
    assert "`generation.prompt_format.tools_list_in_last_user` is ignored" in warnings


@pytest.mark.parametrize("junk", ["x", 3, [1], {"ray_actor_options": "x"}])
def test_nonsense_is_a_fault_and_no_crash(junk: Any) -> None:
    with pytest.raises(ConfigError, match="deployment_config"):
        model_from(FUNCTION_CALLING_TEMPLATE | {"deployment_config": junk}, "old.yaml", ())


@pytest.mark.parametrize(
    "key", ["engine_config", "scaling_config", "multiplex_config", "model_config", "base_model_id"]
)
def test_older_files_are_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^old\.yaml: {key}: this is an? .* of .*Private Endpoints, .* instead"):
        model_from({key: {}}, "old.yaml", ())


@pytest.mark.parametrize(
    "path",
    [
        "rayllm.backend:router_application",
        "aviary.backend:router_application",
        "aviary_private_endpoints.backend.server.run:router_application",
        "rayllm.frontend.app:app",
    ],
)
def test_older_applications_are_refused_by_name(path: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"applications: [{{import_path: '{path}', args: {{models: [./models]}}}}]")
    with pytest.raises(ConfigError, match=rf"serve\.yaml: applications\.0\.import_path: `{path}` is RayLLM 0's"):
        load_serve_file(file)


def test_the_callers_mapping_is_left_as_it_is() -> None:
    import copy

    before = copy.deepcopy(FUNCTION_CALLING_TEMPLATE)
    upgrade(FUNCTION_CALLING_TEMPLATE, Changes())
    assert before == FUNCTION_CALLING_TEMPLATE
