"""Every model file and serve config of the repository loads, and says what is true of it."""

from __future__ import annotations

import ast
import logging
import math
import re
import runpy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.cluster.placement import place
from rayllm.config import AppConfig, HubSource, ModelConfig, load_app, load_model, load_serve_file
from rayllm.config.paths import read_template
from rayllm.prompt import PromptFormat, compile_template, render

ROOT = Path(__file__).parents[2]
CURRENT = sorted((ROOT / "models").glob("*.yaml"))
OLDER = sorted((ROOT / "models" / "older").glob("*.yaml"))
MODELS = CURRENT + OLDER
SERVE_CONFIGS = sorted((ROOT / "serve_configs").glob("*.yaml"))
BASE_MODEL = ROOT / "models" / "older" / "meta-llama--Meta-Llama-3-8B.yaml"

GB_OF = {"A10G": 24, "L40S": 48, "H100": 80, "H200": 141, "B200": 180, "B300": 268}
"""Memory of the accelerators that the files name, as their makers give it."""

VLLM_SHARE = 0.92
"""Source: `CacheConfig.gpu_memory_utilization` of vLLM 0.29."""

WORKSPACE_GB = 2.0
"""Kept free for activations and CUDA graphs."""

FAMILY_OF = {
    "HuggingFaceH4--zephyr-7b-beta": "zephyr-7b-beta",
    "codellama--CodeLlama-7b-Instruct-hf": "llama-2-chat",
    "google--gemma-2-9b-it": "gemma-it",
    "meta-llama--Llama-2-7b-chat-hf": "llama-2-chat",
    "meta-llama--Meta-Llama-3-70B-Instruct": "llama-3-instruct",
    "meta-llama--Meta-Llama-3-8B-Instruct": "llama-3-instruct",
    "mistralai--Mixtral-8x7B-Instruct-v0_1": "mistral-7b-instruct-v0.1",
}
"""Model file: the family in `prompt/families.py` whose published template its format is proven against."""

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
]

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "find_heron",
        "description": "Finds a heron near a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
METHODS_OF_DRAFTS = ("mtp", "qwen3_next_mtp", "eagle", "eagle3", "dspark")

MEMORY = re.compile(
    r"^# GPU memory: weights (?P<weights>[\d.]+)e9 \* (?P<width>[\d.]+) B / (?P<gpus>\d+) = (?P<weights_gb>[\d.]+) GB, "
    r"(?:KV cache 2 \* (?P<layers>\d+) \* (?P<heads>\d+) \* (?P<size>\d+) \* 2 B \* (?P<tokens>\d+) / (?P=gpus)"
    r" = (?P<cache_gb>[\d.]+) GB|latent cache (?P<latent>\d+ \* \d+ \* 2 B \* \d+) = (?P<latent_gb>[\d.]+) GB"
    r"|no KV cache), of (?P<gb>\d+) GB\.$",
    re.MULTILINE,
)
RECIPE = re.compile(
    r"^# GPU memory: vLLM's recipe asks for (?P<asked>[\d,]+) GB, of (?P<gpus>\d+) \* (?P<gb>\d+) GB\.$", re.MULTILINE
)
"""What the model's file in vllm-project/recipes has as `vram_minimum_gb`: the weights, and a fifth more."""

CPU_MEMORY = re.compile(
    r"^# CPU memory: weights (?P<weights>[\d.]+)e9 \* (?P<width>[\d.]+) B = (?P<gb>[\d.]+) GB"
    r"(?:, or (?P<single>[\d.]+) GB in float32)?\.$",
    re.MULTILINE,
)
LARGEST_ON_CPU_GB = 24
"""Weights of more, in float32, fit in no usual machine without a GPU."""

each_model = pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
each_serve_config = pytest.mark.parametrize("path", SERVE_CONFIGS, ids=lambda path: path.stem)


@each_model
def test_a_model_file_loads_without_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        model = load_model(path)

    assert caplog.messages == []
    assert path.stem == model.model_id.replace("/", "--").replace(".", "_")


@each_model
def test_a_model_of_the_hub_is_the_one_it_is_called(path: Path) -> None:
    source = model_in(path).source

    if isinstance(source, HubSource):
        assert source == HubSource(repo_id=model_in(path).model_id)
        assert re.fullmatch(r"[\w-]+/[\w.-]+", source.repo_id)


@each_model
def test_the_context_and_the_replicas_are_limited(path: Path) -> None:
    model = model_in(path)

    assert model.max_model_len
    assert model.engine_kwargs["max_num_seqs"] <= 256
    autoscaling = model.deployment_config.autoscaling_config
    assert autoscaling is None or 1 == autoscaling.min_replicas <= autoscaling.max_replicas <= 4


@each_model
def test_a_replica_fits_its_gpus(path: Path) -> None:
    model = model_in(path)
    gpus = model.tensor_parallel_size * model.pipeline_parallel_size
    assert gpus in (1, 2, 4, 8)
    if not isinstance(model.source, HubSource) or runs_on_cpus(model):
        return

    share = model.engine_kwargs.get("gpu_memory_utilization", VLLM_SHARE)
    if asked := RECIPE.search(path.read_text()):
        assert (int(asked["gpus"]), int(asked["gb"])) == (gpus, GB_OF[model.accelerator_type or "A10G"])
        assert int(asked["asked"].replace(",", "")) <= share * gpus * int(asked["gb"])
        return
    said = MEMORY.search(path.read_text())
    assert said, "give the arithmetic in one line: see models/README.md"
    assert int(said["gpus"]) == gpus
    assert int(said["gb"]) == GB_OF[model.accelerator_type or "A10G"]
    weights = float(said["weights"]) * float(said["width"]) / gpus
    assert said["weights_gb"] == f"{weights:.1f}"
    cache_gb = 0.0
    if said["heads"]:
        assert int(said["tokens"]) == model.max_model_len
        assert int(said["heads"]) % model.tensor_parallel_size == 0
        token = 2 * int(said["layers"]) * int(said["heads"]) * int(said["size"]) * 2
        cache_gb = token * int(said["tokens"]) / gpus / 1e9
        assert said["cache_gb"] == f"{cache_gb:.1f}"
    if said["latent"]:
        # Every GPU keeps all of it.
        factors = [int(factor.removesuffix(" B")) for factor in said["latent"].split(" * ")]
        assert factors[-1] == model.max_model_len
        cache_gb = math.prod(factors) / 1e9
        assert said["latent_gb"] == f"{cache_gb:.1f}"
    assert weights + cache_gb + WORKSPACE_GB <= share * int(said["gb"])


@each_model
def test_a_replica_fits_a_machine_without_a_gpu(path: Path) -> None:
    model = model_in(path)
    if not isinstance(model.source, HubSource) or not runs_on_cpus(model):
        return

    said = CPU_MEMORY.search(path.read_text())
    assert said, "give the arithmetic in one line: see models/README.md"
    weights, width = float(said["weights"]), float(said["width"])
    assert said["gb"] == f"{width * weights:.1f}"
    # Quantized weights are not converted.
    assert said["single"] == (f"{4 * weights:.1f}" if width == 2 else None)
    assert 4 * weights <= LARGEST_ON_CPU_GB


@each_model
def test_its_parsers_are_vllms(path: Path) -> None:
    model = model_in(path)

    assert tool_parser(model) is None or tool_parser(model) in registered("tool_parsers")
    assert model.reasoning_parser is None or model.reasoning_parser in registered("reasoning")


@each_model
def test_tools_are_offered_only_where_the_prompt_shows_them(path: Path) -> None:
    prompt_format = model_in(path).generation_config.prompt_format

    assert prompt_format is None or prompt_format.renders_tools or model_in(path).tool_calling is None


@each_model
def test_its_prompt_format_compiles_and_renders(path: Path) -> None:
    prompt_format = model_in(path).generation_config.prompt_format
    if prompt_format is None:
        # The model's own, which is not in this repository.
        assert (model_in(path).chat_template is None) == (model_in(path).task != "score")
        return

    prompt = render(compile_template(prompt_format), CONVERSATION)

    assert prompt.startswith(prompt_format.bos)
    assert prompt.endswith(prompt_format.trailing_assistant)
    assert all(message["content"] in prompt for message in CONVERSATION)


@each_model
def test_its_prompt_shows_the_tools(path: Path) -> None:
    prompt_format = model_in(path).generation_config.prompt_format
    if prompt_format is None or not prompt_format.renders_tools:
        return

    prompt = render(compile_template(prompt_format), CONVERSATION[:2], tools=[TOOL])

    assert TOOL["function"]["name"] in prompt
    assert TOOL["function"]["description"] in prompt


def test_a_template_for_scores_shows_the_query_and_the_document() -> None:
    pair = [{"role": "query", "content": "What is a heron?"}, {"role": "document", "content": "A bird."}]
    templates = {model_in(path).chat_template for path in MODELS if model_in(path).task == "score"}

    [template] = {read_template(template) for template in templates}
    assert template
    prompt = render(template, pair)

    assert prompt.endswith("<think>\n\n</think>\n\n")
    assert "\n<Query>: What is a heron?\n<Document>: A bird.<|im_end|>\n" in prompt
    assert "<Instruct>: Given a web search query" in prompt


@each_model
def test_drafts_that_a_file_suggests_are_what_vllm_takes(path: Path) -> None:
    lines = path.read_text().splitlines()
    if not any("# speculative_config:" in line for line in lines):
        return

    start = next(number for number, line in enumerate(lines) if "# speculative_config:" in line)
    end = next((number for number in range(start, len(lines)) if not lines[number].startswith("  #")), len(lines))
    lines[start:end] = [line.replace("# ", "", 1) for line in lines[start:end]]
    drafts = yaml.safe_load("\n".join(lines))["engine_kwargs"]["speculative_config"]

    assert drafts["num_speculative_tokens"] in range(1, 16)
    assert drafts.get("method") in (*METHODS_OF_DRAFTS, None)
    assert re.fullmatch(r"[\w-]+/[\w.-]+", drafts.get("model", "its/own"))


@pytest.mark.parametrize(("stem", "family"), FAMILY_OF.items())
def test_its_prompt_format_is_the_proven_one(stem: str, family: str) -> None:
    proven = {each.name: each.keys for each in runpy.run_path(str(ROOT / "tests/unit/prompt/families.py"))["FAMILIES"]}

    prompt_format = model_in(ROOT / "models" / "older" / f"{stem}.yaml").generation_config.prompt_format

    assert prompt_format == PromptFormat(**proven[family])


def test_the_base_model_continues_the_joined_texts() -> None:
    prompt_format = model_in(BASE_MODEL).generation_config.prompt_format
    assert prompt_format

    prompt = render(compile_template(prompt_format), CONVERSATION)

    assert prompt == "<|begin_of_text|>Be brief. What is the capital of France? Paris. "


def test_no_prompt_format_of_a_hub_model_is_unproven() -> None:
    from_the_hub = [path for path in MODELS if isinstance(model_in(path).source, HubSource)]

    with_format = {path.stem for path in from_the_hub if model_in(path).generation_config.prompt_format}

    assert with_format == {*FAMILY_OF, BASE_MODEL.stem}


@each_serve_config
def test_a_serve_config_loads_without_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (application,) = load_serve_file(path)

    with caplog.at_level(logging.WARNING):
        app = load_app(application["args"], path.parent)

    assert caplog.messages == []
    assert (application["name"], application["import_path"]) == ("rayllm", "rayllm:app")
    ids = [model.model_id for model in app.models]
    assert len(ids) == len(set(ids))
    assert {model.model_id: model for model in app.models}.items() <= by_id().items()


@each_serve_config
def test_a_serve_config_listens_on_this_machine_only_and_gives_its_command(path: Path) -> None:
    text = path.read_text()

    assert "http_options:\n  host: 127.0.0.1\n  port: 8000\n" in text
    assert text.partition("\n")[0].endswith((f": serve run serve_configs/{path.name}", ": make run"))


def test_every_model_can_be_served_by_itself_and_beside_all_others() -> None:
    assert all(AppConfig(models=(model,)) for model in by_id().values())
    # A folder means its own files, and not those below it.
    assert load_app({"llm_configs": [str(ROOT / "models")]}).models == tuple(map(model_in, CURRENT))
    assert load_app({"llm_configs": [str(ROOT / "models" / "older")]}).models == tuple(map(model_in, OLDER))


def test_the_table_in_the_readme_agrees_with_the_files() -> None:
    lines = (ROOT / "models" / "README.md").read_text().splitlines()

    assert [line for line in lines if line.startswith("| [")] == [row(path) for path in MODELS]


def row(path: Path) -> str:
    """The line of the README's table for one model file."""
    model = model_in(path)
    gpus = model.tensor_parallel_size * model.pipeline_parallel_size
    prompt = "`prompt_format`" if model.generation_config.prompt_format else "the model's own"
    cells = [
        f"[{model.model_id}]({path.relative_to(ROOT / 'models')})",
        "any, or CPU" if runs_on_cpus(model) else f"{model.accelerator_type or 'any'} × {gpus}",
        f"{model.max_model_len:,}",
        model.task or "generate",
        prompt if model.task in (None, "generate") else "",
        tool_parser(model) or "",
        model.reasoning_parser or "",
    ]
    return f"| {' | '.join(cells)} |"


def runs_on_cpus(model: ModelConfig) -> bool:
    """Whether replicas run on CPUs where vLLM's CPU build is installed."""
    return not place(model, cpu_engine=True).gpu_share


def tool_parser(model: ModelConfig) -> str | None:
    return model.tool_calling.parser if model.tool_calling else None


@cache
def model_in(path: Path) -> ModelConfig:
    return load_model(path)


def by_id() -> dict[str, ModelConfig]:
    return {model_in(path).model_id: model_in(path) for path in MODELS}


@cache
def registered(package: str) -> frozenset[str]:
    """Names in the table of parsers of `vllm.<package>`, read without importing vLLM, which takes seconds."""
    vllm = find_spec("vllm")
    assert vllm
    assert vllm.origin
    tree = ast.parse((Path(vllm.origin).parent / package / "__init__.py").read_text())
    tables = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and "_PARSERS_TO_REGISTER" in ast.unparse(node.targets[0])
    ]
    assert len(tables) == 1
    return frozenset(tables[0])
