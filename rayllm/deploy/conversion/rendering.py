"""Render converted mappings as YAML."""

from __future__ import annotations

from rayllm.config.legacy.nested import Mapping
from rayllm.config.yaml import dump_yaml

# Groups of keys, in the order of the shipped files; other keys, such as a top-level `prompt_format`, come last.
PARAGRAPHS = (
    ("model_loading_config",),
    ("generation_config", "chat_template", "chat_template_kwargs"),
    ("tool_calling", "reasoning_parser", "guided_decoding", "allowed_request_fields"),
    ("task",),
    (
        "accelerator_type",
        "tensor_parallelism",
        "pipeline_parallelism",
        "placement_group_config",
        "max_request_context_length",
        "llm_engine",
        "vllm_version",
        "engine_kwargs",
        "log_engine_metrics",
    ),
    ("lora_config",),
    ("deployment_config",),
    ("runtime_env",),
)


def model_text(config: Mapping) -> str:
    """Render a model's file."""
    return "\n".join(dump_yaml(part) for part in _parts(config))


def ordered(config: Mapping) -> Mapping:
    """A model's mapping in the order of its file, for a serve config with inline models."""
    return {key: value for part in _parts(config) for key, value in part.items()}


def _parts(config: Mapping) -> list[Mapping]:
    rest = tuple(key for key in config if not any(key in keys for keys in PARAGRAPHS))
    parts = ({key: config[key] for key in keys if key in config} for keys in (*PARAGRAPHS, rest))
    return [part for part in parts if part]


def serve_text(config: Mapping) -> str:
    """Render a serve config."""
    head = {key: value for key, value in config.items() if key != "applications"}
    parts = [head, {"applications": config["applications"]}]
    return "\n".join(dump_yaml(part) for part in parts if part)
