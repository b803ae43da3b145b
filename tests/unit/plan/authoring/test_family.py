"""Model families: how they are found, and whether their data is right."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from rayllm.config import load_model
from rayllm.config.engine_arguments import check_parser
from rayllm.plan.authoring.profile import families, find_family
from rayllm.prompt import PromptFormat

ROOT = Path(__file__).parents[4]
PROVEN = {
    "Llama 3 Instruct": "llama-3-instruct",
    "Llama 2 Chat and Code Llama Instruct": "llama-2-chat",
    "Mistral 7B and Mixtral 8x7B Instruct v0.1": "mistral-7b-instruct-v0.1",
    "Zephyr": "zephyr-7b-beta",
    "Gemma 1 and 2": "gemma-it",
}


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_parsers_exist_in_vllm(family) -> None:  # type: ignore[no-untyped-def]
    check_parser("tool_parser", family.tool_parser)
    check_parser("reasoning_parser", family.reasoning_parser)
    assert family.names or family.template


def test_prompt_formats_match_the_shipped_models() -> None:
    proven = {each.name: each.keys for each in runpy.run_path(str(ROOT / "tests/unit/prompt/families.py"))["FAMILIES"]}
    formats = {each.name: PromptFormat(**each.prompt_format) for each in families() if each.prompt_format}
    demo = load_model(ROOT / "models" / "rayllm-demo.yaml").generation_config.prompt_format
    assert formats.pop("the bundled demo") == demo
    assert formats == {name: PromptFormat(**proven[published]) for name, published in PROVEN.items()}


SHIPPED = [path for folder in ("models", "models/older") for path in sorted((ROOT / folder).glob("*.yaml"))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_models_match_their_family(path: Path) -> None:
    model = load_model(path)
    family = find_family(model.model_id, "", None)
    generation, calls = model.generation_config, model.tool_calling
    if model.task or path.stem == "meta-llama--Meta-Llama-3-8B":  # texts that a base model continues
        return
    assert model.reasoning_parser == (family.reasoning_parser if family else None)
    assert (calls.parser if calls else None) == (family.tool_parser if family else None)
    format_of_family = family.prompt_format if family else None
    assert generation.prompt_format == (PromptFormat(**format_of_family) if format_of_family else None)


@pytest.mark.parametrize(
    ("model_id", "model_type", "template", "name"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "llama", None, "Llama 3.1, 3.2 and 3.3 Instruct"),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "mllama", None, None),
        ("Qwen/Qwen3-8B", "qwen3", None, "Qwen 3"),
        ("Qwen/Qwen3-4B-Instruct-2507", "qwen3", None, "Qwen 3 Instruct, without reasoning"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_moe", None, "Qwen 3 Coder"),
        ("Qwen/Qwen3-Embedding-0.6B", "qwen3", None, None),
        ("openai/gpt-oss-20b", "gpt_oss", None, "gpt-oss"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek_v3", None, "DeepSeek V3.1"),
        ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", None, "DeepSeek V4"),
        ("Qwen/Qwen3.6-27B-FP8", "qwen3_5", None, "Qwen 3.5, 3.6 and 3.8"),
        ("Qwen/Qwen3-ASR-1.7B", "qwen3_asr", None, None),
        ("zai-org/GLM-5.2-FP8", "glm_moe_dsa", None, "GLM 4.7 and 5"),
        ("mistralai/Mistral-Small-4-119B-2603", "mistral4", None, "Mistral models that reason, of 2025 and 2026"),
        ("mistralai/Ministral-3-3B-Instruct-2512", "mistral3", None, "Mistral Instruct with tools"),
        ("mine/my-tune", "qwen2", "…<tools>…<tool_call>…", "models that call tools as Hermes 2 Pro does"),
        ("mine/my-tune", "llama", "<|start_header_id|> <|python_tag|>", "models that call tools as Llama 3.1 does"),
        ("mine/my-tune", "llama", "{{ messages }}", None),
        # The name of a family in a model of another type.
        ("mine/zephyr-7b-of-my-own", "falcon", None, None),
    ],
)
def test_find_family(model_id: str, model_type: str, template: str | None, name: str | None) -> None:
    family = find_family(model_id, model_type, template)
    assert (family.name if family else None) == name
