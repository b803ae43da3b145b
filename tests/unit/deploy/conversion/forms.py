"""Models of every form that is converted, with most of what each form has."""

from __future__ import annotations

from typing import Any

Mapping = dict[str, Any]

TOKEN = "hf_" + "a1" * 16

EARLY: Mapping = {
    "runtime_env": {"env_vars": {"HUGGING_FACE_HUB_TOKEN": "insert your token", "ANYSCALE_VLLM_USE_V2": "1"}},
    "model_loading_config": {
        "model_id": "org/chat-8b",
        "model_source": {
            "bucket_uri": "s3://b/chat-8b",
            "s3_sync_args": ["--region", "us-west-2", "--exclude", "*.bin", "--no-sign-request"],
            "s3_aws_credentials": None,
            "extra_files": [{"bucket_uri": "s3://b/extra", "destination_path": "extra"}],
        },
        "anytensor_config": {"model_path": "s3://b/anytensor/"},
    },
    "generation": {
        "prompt_format": {
            "bos": "<s>",
            "system": "{instruction}\n",
            "assistant": "{tool_calls}{instruction}</s>",
            "user": "{tools_list}[INST] {system}{instruction} [/INST]",
            "system_in_user": True,
            "tools_list": "[TOOLS] {instruction}",
            "tool_calls": "[CALLS] {instruction}",
            "tool": "[RESULT] {instruction}",
            "tools_list_in_user": True,
            "tools_list_in_last_user": True,
        },
        "generate_kwargs": {"do_sample": True, "max_new_tokens": 256, "temperature": 0.4},
        "stopping_sequences": ["</s>"],
        "stopping_tokens": None,
    },
    "input_modality": "text",
    "llm_engine": "VLLMEngine",
    "engine_kwargs": {
        "max_num_batched_tokens": None,
        "tokenizer_pool_size": 2,
        "trust_remote_code": True,
        "speculative_model": "[ngram]",
        "num_speculative_tokens": 7,
        "ngram_prompt_lookup_max": 3,
    },
    "accelerator_type": "A100_40G",
    "tensor_parallelism": {"degree": 2},
    "deployment_config": {
        "autoscaling_config": {"min_replicas": 0.0, "target_ongoing_requests": 32, "smoothing_factor": 0.6},
        "max_concurrent_queries": 64,
        "ray_actor_options": {"runtime_env": {"env_vars": {"HUGGING_FACE_HUB_TOKEN": TOKEN}}},
    },
    "json_mode": {"enabled": True, "options": {"num_processes": 8}},
    "lora_config": {"dynamic_lora_loading_path": "s3://b/adapters/", "download_timeout_s": 0},
}

RAY_SERVE_LLM: Mapping = {
    "model_loading_config": {"model_id": "org/chat-1b", "model_source": {"bucket_uri": "s3://anonymous@b/chat-1b"}},
    "accelerator_type": "A10",
    "accelerator_config": {"kind": "gpu"},
    "placement_group_config": {"bundle_per_worker": {"GPU": 0.5}},
    "engine_kwargs": {
        "max_model_len": 8192,
        "tool_call_parser": "hermes",
        "enable_auto_tool_choice": True,
        "reasoning_parser": "qwen3",
        "distributed_executor_backend": "ray",
        "hf_token": TOKEN,
        "api_key": "whoever-knows-this",
        "swap_space": 4,
        "lora_modules": [{"name": "sql", "path": "s3://b/sql", "base_model_name": "org/chat-1b"}],
    },
    "lora_config": {"max_num_adapters_per_replica": 8},
    "deployment_config": {
        "name": "chat",
        "num_replicas": "auto",
        "autoscaling_config": {"max_replicas": 3},
        "max_queued_requests": -1,
        "ray_actor_options": {"num_gpus": 0, "num_cpus": 2},
        "request_router_config": {
            "request_router_class": "ray.serve.llm.request_router.PrefixCacheAffinityRouter",
            "request_router_kwargs": {"imbalanced_threshold": 16},
        },
    },
    "server_cls": "ray.serve.llm.deployment:LLMServer",
    "experimental_configs": {"stream_batching_interval_ms": 0, "num_ingress_replicas": 4},
    "log_engine_metrics": True,
    "callback_config": {"callback_class": "my.Callback"},
    "runtime_env": {
        "env_vars": {"HF_TOKEN": TOKEN, "TOKENIZERS_PARALLELISM": "false"},
        "pip": ["--index-url https://user:pass@pypi.example.com/simple"],
    },
}

CURRENT: Mapping = {
    "model_loading_config": {"model_id": "org/today"},
    "accelerator_type": "A10G",
    "engine_kwargs": {"max_num_seqs": 8},
}

MODELS = {
    "rayllm-1": EARLY,
    "ray.serve.llm": RAY_SERVE_LLM,
}
