"""`rayllm gen-config --recipe` as it is called: what it writes of a recipe, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.servers.hub import HubServer
from tests.unit.authoring.recipes.recipe_files import recipe
from tests.unit.authoring.recipes.recipe_files import written as recipe_file
from tests.unit.cli.commands.test_gen_config import WEIGHTS, folder, gen_config, no_gpu, outlined, written

__all__ = ["folder", "no_gpu"]

pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def heading(folder: Path) -> list[str]:
    [file] = (folder / "model_config").iterdir()
    return [line for line in file.read_text().splitlines() if line.startswith("#")]


@pytest.mark.usefixtures("offline")
def test_a_recipe_is_written_as_a_model_file(tmp_path: Path, folder: Path) -> None:
    file = recipe_file(tmp_path)
    done = gen_config(folder, "--recipe", str(file), "--accelerator-type", "h100", "--feature", "spec_decoding")
    model, app = written(folder, done)
    assert app.models == (model,)
    assert model.model_id == "example/Heron-90B"
    assert (model.accelerator_type, model.tensor_parallel_size, model.max_model_len) == ("H100", 4, 32768)
    assert model.engine_kwargs == {
        "trust_remote_code": True,
        "max_num_seqs": 64,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
    }
    assert model.tool_calling
    assert model.tool_calling.parser == "hermes"
    assert model.reasoning_parser == "qwen3"
    assert model.vllm_version == ">=0.17.0"
    assert model.runtime_env == {"env_vars": {"VLLM_USE_DEEP_GEMM": "0"}}
    assert heading(folder)[-2:] == [
        "# From vLLM's recipe for example/Heron-90B, variant `default`.",
        "# The recipe asks for 216 GB; H100 × 4 have 340 GB.",
    ]
    assert "A context of 32,768 tokens: --max-model-len sets another." in done.stderr


@pytest.mark.usefixtures("offline")
def test_options_choose_the_variant_and_the_rest(tmp_path: Path, folder: Path) -> None:
    options = ["--accelerator-type", "H100", "--tensor-parallelism", "2", "--max-model-len", "65536"]
    options += ["--max-num-seqs", "16", "--max-replicas", "2", "--without-feature", "tool_calling"]
    model, _ = written(folder, gen_config(folder, "--recipe", str(recipe_file(tmp_path)), *options))
    assert model.model_id == "example/Heron-90B-FP8"
    assert (model.tensor_parallel_size, model.max_model_len) == (2, 65536)
    assert model.engine_kwargs == {"trust_remote_code": True, "max_num_seqs": 16, "block_size": 64}
    assert model.tool_calling is None
    assert model.deployment_config.autoscaling_config
    assert model.deployment_config.autoscaling_config.max_replicas == 2


def test_a_draft_of_the_recipe_is_planned(hub: HubServer, tmp_path: Path, folder: Path) -> None:
    outlined(hub, "example/Heron-90B", "meta-llama/Llama-3.1-70B-Instruct")
    outlined(hub, "example/Heron-8B", "meta-llama/Llama-3.1-8B-Instruct")
    features = recipe()["features"]
    drafts = json.dumps({"method": "draft_model", "model": "example/Heron-8B", "num_speculative_tokens": 3})
    features["spec_decoding"] = {"description": "Drafts", "args": ["--speculative-config", drafts]}
    file = str(recipe_file(tmp_path, features=features))
    options = ["--accelerator-type", "H100", "--tensor-parallelism", "4"]
    gen_config(folder, "--recipe", file, *options)
    without = "\n".join(heading(folder))
    gen_config(folder, "--recipe", file, *options, "--feature", "spec_decoding", "--force")
    with_draft = "\n".join(heading(folder))
    # A quarter of the draft's 15.0 GiB is on each GPU.
    assert "weights 32.9 GiB" in without
    assert "weights 36.6 GiB" in with_draft


def test_a_model_that_can_be_read_is_planned(hub: HubServer, tmp_path: Path, folder: Path) -> None:
    outlined(hub, "example/Heron-90B", "meta-llama/Llama-3.1-70B-Instruct")
    file = recipe_file(tmp_path)
    model, _ = written(folder, gen_config(folder, "--recipe", str(file), "--accelerator-type", "H100"))
    assert model.max_model_len == 131072
    assert "weights 32.9 GiB" in "\n".join(heading(folder))
    assert heading(folder)[-1] == "# From vLLM's recipe for example/Heron-90B, variant `default`."
    too_small = recipe()["variants"]
    too_small["default"]["vram_minimum_gb"] = 20
    said = gen_config(folder, "--recipe", str(recipe_file(tmp_path, variants=too_small)), "--accelerator-type", "H100")
    assert said.returncode == 1
    assert "H100 × 1: the model does not fit: 131.4 of 79.1 GiB are weights." in said.stderr
    assert "hint: --tensor-parallelism 4 does." in said.stderr


def test_the_weights_may_be_elsewhere_and_on_a_cpu(tmp_path: Path, folder: Path) -> None:
    small = {"default": {"precision": "bf16", "vram_minimum_gb": 1}}
    options = ["--accelerator-type", "none", "--model-source", str(WEIGHTS), "--max-model-len", "1024"]
    model, _ = written(folder, gen_config(folder, "--recipe", str(recipe_file(tmp_path, variants=small)), *options))
    assert (model.model_id, model.accelerator_type) == ("example/Heron-90B", None)
    assert model.model_loading_config.model_dump(exclude_unset=True)["model_source"] == {"path": str(WEIGHTS)}


@pytest.mark.usefixtures("offline")
def test_files_beside_the_model_are_found_or_said_to_be_missing(tmp_path: Path, folder: Path) -> None:
    features = {
        "tool_calling": {"args": ["--tool-call-parser", "hermes", "--chat-template", "examples/heron.jinja"]},
        "reasoning": {"args": ["--reasoning-parser-plugin", "heron.py", "--reasoning-parser", "heron"]},
    }
    file = recipe_file(tmp_path, features=features, opt_in_features=[])
    call = ["--recipe", str(file), "--accelerator-type", "H100"]
    refused = gen_config(folder, *call)
    assert refused.returncode == 1
    assert "reasoning_parser_plugin: heron.py is not in this folder." in refused.stderr
    done = gen_config(folder, *call, "--without-feature", "reasoning")
    assert "The chat template examples/heron.jinja is not here, so the model's own is used" in done.stderr
    assert written(folder, done)[0].chat_template is None
    (folder / "heron.py").write_text("")
    (folder / "examples").mkdir()
    (folder / "examples" / "heron.jinja").write_text("{{ messages }}")
    model, _ = written(folder, gen_config(folder, *call, "--force"))
    assert model.chat_template == str(folder / "examples" / "heron.jinja")
    assert model.engine_kwargs["reasoning_parser_plugin"] == str(folder / "heron.py")


@pytest.mark.usefixtures("offline")
def test_parsers_that_a_recipe_does_not_mention_are_those_of_the_family(tmp_path: Path, folder: Path) -> None:
    model = recipe()["model"] | {"model_id": "example/gpt-oss-20b"}
    changes = {"model": model, "features": {}, "opt_in_features": []}
    call = ["--recipe", str(recipe_file(tmp_path, **changes)), "--accelerator-type", "H100"]
    written_model, _ = written(folder, gen_config(folder, *call))
    assert written_model.tool_calling
    assert (written_model.tool_calling.parser, written_model.reasoning_parser) == ("openai", "openai_gptoss")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--variant", "fp8", "--model-id", "a/b"], 2, "--variant is for recipes: add --recipe, or leave it out."),
        (["--feature", "reasoning", "--model-id", "a/b"], 2, "--feature is for recipes"),
        (["--recipe", "{recipe}", "--model-id", "a/b"], 2, "--model-id: the recipe names the model"),
        (["--recipe", "nowhere.yaml"], 1, "nowhere.yaml: cannot be read: No such file"),
        (["--recipe", "{recipe}", "--accelerator-type", "H1000"], 1, "did you mean `H100`"),
        (["--recipe", "{recipe}", "--accelerator-type", "L4", "--tensor-parallelism", "2"], 1, "GB more than L4 × 2"),
    ],
)
def test_what_cannot_be(tmp_path: Path, folder: Path, arguments: list[str], code: int, said: str) -> None:
    file = str(recipe_file(tmp_path))
    done = gen_config(folder, *[argument.format(recipe=file) for argument in arguments])
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(folder.iterdir())
