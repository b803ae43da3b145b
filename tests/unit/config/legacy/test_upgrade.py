"""Old spellings load with a warning that names the new key."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.config import HubSource, ModelConfig, model_from
from rayllm.config.legacy import Changes, upgrade
from rayllm.errors import ConfigError

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

ENGINE_CONFIG_GENERATION: dict[str, Any] = {
    "deployment_config": {
        "autoscaling_config": {
            "min_replicas": 1,
            "initial_replicas": 1,
            "max_replicas": 8,
            "target_num_ongoing_requests_per_replica": 24,
            "metrics_interval_s": 10.0,
            "look_back_period_s": 30.0,
            "smoothing_factor": 0.5,
            "downscale_delay_s": 300.0,
            "upscale_delay_s": 15.0,
        },
        "max_concurrent_queries": 64,
        "ray_actor_options": {"resources": {"accelerator_type_a10": 0.01}},
    },
    "engine_config": {
        "model_id": "meta-llama/Llama-2-7b-chat-hf",
        "hf_model_id": "meta-llama/Llama-2-7b-chat-hf",
        "type": "VLLMEngine",
        "engine_kwargs": {"trust_remote_code": True, "max_num_seqs": 64, "gpu_memory_utilization": 0.9},
        "max_total_tokens": 4096,
        "generation": {
            "prompt_format": {
                "system": "<<SYS>>\n{instruction}\n<</SYS>>\n\n",
                "assistant": " {instruction} </s><s>",
                "trailing_assistant": "",
                "user": "[INST] {system}{instruction} [/INST]",
                "system_in_user": True,
                "default_system_message": "",
            },
            "stopping_sequences": [],
        },
    },
    "scaling_config": {
        "num_workers": 2,
        "num_gpus_per_worker": 1,
        "num_cpus_per_worker": 8,
        "placement_strategy": "STRICT_PACK",
        "resources_per_worker": {"accelerator_type_a10": 0.01},
    },
}


def load(raw: dict[str, Any], caplog: pytest.LogCaptureFixture) -> tuple[ModelConfig, str]:
    with caplog.at_level("WARNING"):
        return model_from(raw, "old.yaml", ()), caplog.text


def test_a_file_of_the_last_generation(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_file_of_the_first_generation(caplog: pytest.LogCaptureFixture) -> None:
    config, warnings = load(ENGINE_CONFIG_GENERATION, caplog)
    assert config.source == HubSource(repo_id="meta-llama/Llama-2-7b-chat-hf")
    assert config.tensor_parallel_size == 2
    assert config.accelerator_type == "A10G"
    assert config.max_model_len == 4096
    assert config.max_ongoing_requests == 64
    scaling = config.deployment_config.autoscaling_config
    assert scaling is not None
    assert (scaling.target_ongoing_requests, scaling.upscaling_factor, scaling.max_replicas) == (24, 0.5, 8)
    assert config.generation_config.prompt_format is not None
    assert config.deployment_config.ray_actor_options.resources == {}
    for expected in (
        "`engine_config.hf_model_id` is now `model_loading_config.model_source`",
        "`deployment_config.max_ongoing_requests`",
        "smoothing_factor",
        "num_cpus_per_worker",
    ):
        assert expected in warnings


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"generation": {"stopping_sequences": ["x"]}}, "`generation` is now `generation_config`"),
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
            {"generation_config": {"stopping_sequences": ["x", 2, [3]]}},
            "`generation_config.stopping_sequences` is now `generation_config.stopping_tokens`",
        ),
        (
            {"runtime_env": {"env_vars": {"ANYSCALE_VLLM_USE_V2": "1"}}},
            "`runtime_env.env_vars.ANYSCALE_VLLM_USE_V2` is ignored",
        ),
        ({"standalone_function_calling_model": True}, "`standalone_function_calling_model` is ignored"),
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


@pytest.mark.parametrize(
    ("resource", "accelerator"),
    [("accelerator_type_a10", "A10G"), ("accelerator_type:L4", "L4"), ("accelerator_type_a100_80g_aws", "A100-80G")],
)
def test_an_accelerator_was_a_resource(resource: str, accelerator: str, caplog: pytest.LogCaptureFixture) -> None:
    scaling = {"num_workers": 1, "resources_per_worker": {resource: 0.01}}
    config, _ = load(ENGINE_CONFIG_GENERATION | {"scaling_config": scaling}, caplog)
    assert config.accelerator_type == accelerator
    assert config.placement_group_config is None


@pytest.mark.parametrize("junk", ["x", 3, [1], {"ray_actor_options": "x"}])
def test_nonsense_is_a_fault_and_no_crash(junk: Any) -> None:
    with pytest.raises(ConfigError, match="deployment_config"):
        model_from(ENGINE_CONFIG_GENERATION | {"deployment_config": junk}, "old.yaml", ())


def test_what_no_generation_knew_is_still_refused() -> None:
    raw = ENGINE_CONFIG_GENERATION | {"engine_config": {"model_id": "m", "speed": 3}}
    with pytest.raises(ConfigError, match=r"engine_config\.speed: unknown key"):
        model_from(raw, "old.yaml", ())


def test_the_callers_mapping_is_left_as_it_is() -> None:
    import copy

    before = copy.deepcopy(ENGINE_CONFIG_GENERATION)
    upgrade(ENGINE_CONFIG_GENERATION, Changes())
    assert before == ENGINE_CONFIG_GENERATION
