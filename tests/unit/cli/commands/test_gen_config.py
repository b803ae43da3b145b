"""`rayllm gen-config` as it is called: what it writes, and what it refuses."""

from __future__ import annotations

import json
import os
import stat
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import AppConfig, ModelConfig, load_app, load_model, load_serve_file
from rayllm.plan.known_models import known_config, outline_tensors
from tests.command_line import rayllm
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server

ROOT = Path(__file__).parents[4]
WEIGHTS = ROOT / "models" / "rayllm-demo" / "weights"


def gen_config(folder: Path, *arguments: str, answers: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    silent = ["--non-interactive"] if answers is None else []
    given = "".join(f"{answer}\n" for answer in answers or [])
    return rayllm("gen-config", *silent, "--output-dir", str(folder), *arguments, stdin=given, folder=folder)


def written(folder: Path, done: subprocess.CompletedProcess[str]) -> tuple[ModelConfig, AppConfig]:
    """The model's file and the serve config that there are now, and no others."""
    assert done.returncode == 0, done.stderr
    [model_file] = (folder / "model_config").iterdir()
    [serve_file] = folder.glob("serve_*.yaml")
    assert done.stdout == f"rayllm run {serve_file}\n"
    [application] = load_serve_file(serve_file)
    return load_model(model_file), load_app(application["args"], folder)


def outlined(hub: HubServer, repo_id: str, like: str, **more: bytes) -> None:
    """A repository with the configuration and the headers of a known model, and no weights behind them."""
    config = known_config(like)
    assert config
    header = json.dumps(
        {name: {"dtype": t.dtype, "shape": t.shape} for name, t in outline_tensors(config).items()}
    ).encode()
    weights = struct.pack("<Q", len(header)) + header
    files: dict[str, bytes | Path] = {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
    hub.commit(repo_id, files | {name.replace("_json", ".json"): text for name, text in more.items()})


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a machine whose NVIDIA tool finds nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


pytestmark = pytest.mark.usefixtures("no_gpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


def test_everything_is_worked_out_of_a_repository(hub: HubServer, folder: Path) -> None:
    outlined(hub, "mine/big", "meta-llama/Llama-3.1-70B-Instruct")
    done = gen_config(folder, "--model-id", "mine/big", "--accelerator-type", "a100_80gb")
    model, app = written(folder, done)
    assert app.models == (model,)
    assert (model.accelerator_type, model.tensor_parallel_size) == ("A100-80G", 4)
    # Several sequences of full length have room, and many of usual length.
    assert model.max_model_len == 131072
    assert model.engine_kwargs == {"max_num_seqs": 232}
    heading = (folder / "model_config" / "mine--big.yaml").read_text().splitlines()
    assert heading[0] == "# mine/big. Written by `rayllm gen-config`."
    assert "weights 32.9 GiB" in heading[2]


def test_without_a_gpu_named_the_least_memory_that_does(hub: HubServer, folder: Path) -> None:
    outlined(hub, "mine/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct")
    done = gen_config(folder, "--model-id", "mine/Llama-3.1-8B-Instruct", "--max-model-len", "8192")
    model, _ = written(folder, done)
    # On a large machine with the CPU build the model is no burden, and runs there.
    assert model.accelerator_type in ("L4", None)
    assert model.tool_calling
    assert model.tool_calling.parser == "llama3_json"


def test_every_answer_is_an_option(folder: Path) -> None:
    options = {
        "--model-id": "org/my.demo",
        "--model-source": str(WEIGHTS),
        "--accelerator-type": "L4",
        "--tensor-parallelism": "2",
        "--pipeline-parallelism": "2",
        "--max-model-len": "1024",
        "--max-num-seqs": "7",
        "--lora-path": "s3://bucket/adapters",
        "--max-loras": "3",
        "--max-lora-rank": "64",
        "--min-replicas": "0",
        "--max-replicas": "9",
        "--target-ongoing-requests": "5",
    }
    words = [word for pair in options.items() for word in pair]
    model, _ = written(folder, gen_config(folder, "--enable-lora", *words))
    assert (folder / "model_config" / "org--my_demo.yaml").is_file()
    assert model.model_id == "org/my.demo"
    assert (model.accelerator_type, model.tensor_parallel_size, model.pipeline_parallel_size) == ("L4", 2, 2)
    assert (model.max_model_len, model.engine_kwargs) == (1024, {"max_num_seqs": 7, "max_lora_rank": 64})
    assert model.lora_config
    assert model.lora_config.dynamic_lora_loading_path == "s3://bucket/adapters"
    assert model.lora_config.max_num_adapters_per_replica == 3
    scaling = model.deployment_config.autoscaling_config
    assert scaling
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (0, 9, 5)


def test_a_bucket(s3: S3Server, folder: Path) -> None:
    s3.put("models", {path.name: path.read_bytes() for path in WEIGHTS.iterdir()})
    model, _ = written(folder, gen_config(folder, "--model-id", "s3://models", "--accelerator-type", "L4"))
    assert model.model_loading_config.model_dump(exclude_unset=True) == {
        "model_id": "models",
        "model_source": {"bucket_uri": "s3://models"},
    }


def test_a_gated_model_gets_a_reference_and_never_the_token(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlined(hub, "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct")
    hub.gate("meta-llama/Llama-3.1-8B-Instruct", "hf_right")
    ask = ["--model-id", "meta-llama/Llama-3.1-8B-Instruct", "--accelerator-type", "L4"]
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    refused = gen_config(folder, *ask)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is gated: ask for access on its page and set HF_TOKEN" in refused.stderr
    assert not any(folder.iterdir())
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    done = gen_config(folder, *ask)
    assert "It is gated" in done.stderr
    assert not any("hf_right" in path.read_text() for path in folder.rglob("*.yaml"))
    text = (folder / "model_config" / "meta-llama--Llama-3_1-8B-Instruct.yaml").read_text()
    assert "HF_TOKEN: ${env:HF_TOKEN}" in text


def test_embedders_and_rerankers_are_told_by_their_files(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "embedder"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    done = gen_config(folder, "--model-id", str(model), "--accelerator-type", "none")
    found, _ = written(folder, done)
    assert (found.task, found.accelerator_type) == ("embed", None)
    assert "cannot be computed: it is an encoder without a cache" in done.stderr


def test_questions_have_answers_worked_out(folder: Path) -> None:
    # The model, in a folder, which; GPU, degree; adapters, which, how many, of what rank; context; scaling.
    answers = ["rayllm-demo", "y", str(WEIGHTS), "none", "", "y", "adapters", "4", "", "1024", "y", "1", "2", "8"]
    done = gen_config(folder, answers=answers)
    model, _ = written(folder, done)
    assert "GPU type" in done.stderr
    assert model.generation_config.prompt_format
    assert model.tool_calling
    assert model.lora_config
    assert model.lora_config.dynamic_lora_loading_path == str(folder / "adapters")
    scaling = model.deployment_config.autoscaling_config
    assert scaling
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (1, 2, 8)


def test_a_model_that_is_not_there_is_asked_for_again(folder: Path, tmp_path: Path) -> None:
    answers = [str(tmp_path / "nowhere"), "./other.yaml", str(WEIGHTS), "none", "", "n", "", "n"]
    done = gen_config(folder, answers=answers)
    assert "is not a folder" in done.stderr
    assert "is already a model file" in done.stderr
    written(folder, done)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--model-id is required"),
        (["--model-id", str(WEIGHTS), "--lora-path", "s3://b/a"], 2, "--lora-path is for adapters: add --enable-lora"),
        (["--model-id", str(WEIGHTS), "--enable-lora"], 2, "--lora-path is required"),
        (
            ["--model-id", str(WEIGHTS), "--min-replicas", "3", "--max-replicas", "2"],
            2,
            "is more than --max-replicas 2",
        ),
        (["--model-id", str(WEIGHTS), "--accelerator-type", "L4", "--tensor-parallelism", "3"], 1, "8 attention heads"),
        (["--model-id", str(WEIGHTS), "--tensor-parallelism", "7"], 1, "may be 1, 2, 4, 8."),
        (["--model-id", str(WEIGHTS), "--max-model-len", "4096"], 1, "--max-model-len: 4,096 is more than the 2,048"),
        (["--model-id", str(ROOT)], 1, "is not a model: it holds no config.json"),
        (["--model-id", "a model"], 1, "neither a hub id like `organisation/name` nor a path"),
    ],
)
def test_what_cannot_be(folder: Path, arguments: list[str], code: int, message: str) -> None:
    done = gen_config(folder, *arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not any(folder.iterdir())


def test_a_model_that_does_not_fit_is_refused_with_the_way_out(hub: HubServer, folder: Path) -> None:
    outlined(hub, "mine/big", "meta-llama/Llama-3.1-70B-Instruct")
    done = gen_config(folder, "--model-id", "mine/big", "--accelerator-type", "H100", "--tensor-parallelism", "1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "error: H100 × 1: the model does not fit: 131.4 of 79.1 GiB are weights.",
        "hint: --tensor-parallelism 4 does.",
    ]


def test_a_context_that_cannot_fit_is_refused_with_the_one_that_does(hub: HubServer, folder: Path) -> None:
    outlined(hub, "mine/big", "meta-llama/Llama-3.1-70B-Instruct")
    options = ["--accelerator-type", "H100", "--tensor-parallelism", "2", "--max-model-len", "131072"]
    done = gen_config(folder, "--model-id", "mine/big", *options)
    assert done.returncode == 1
    assert "--max-model-len: no sequence of 131,072 tokens fits H100 × 2." in done.stderr
    assert "so does a higher --tensor-parallelism" in done.stderr
    assert not any(folder.iterdir())


def test_without_the_hub_what_is_said_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused = gen_config(folder, "--model-id", "mine/unknown")
    assert refused.returncode == 1
    assert "hint: --accelerator-type and --tensor-parallelism replace what would be computed." in refused.stderr
    options = ["--accelerator-type", "L4", "--tensor-parallelism", "2", "--max-model-len", "4096"]
    done = gen_config(folder, "--model-id", "mine/unknown", *options)
    model, _ = written(folder, done)
    assert (model.accelerator_type, model.tensor_parallel_size, model.max_model_len) == ("L4", 2, 4096)
    assert "nothing is checked" in done.stderr
    model, _ = written(folder, gen_config(folder, "--model-id", "mine/unknown", "--accelerator-type", "L4", "--force"))
    assert (model.accelerator_type, model.tensor_parallel_size, model.max_model_len) == ("L4", 1, None)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            ["--tensor-parallelism", "7"],
            "tensor parallelism 7: 8 attention heads cannot be shared by 7 GPUs.\n"
            "hint: --tensor-parallelism may be 1, 2, 4, 8.",
        ),
        (
            ["--tensor-parallelism", "8", "--pipeline-parallelism", "9"],
            "tensor parallelism 8, pipeline parallelism 9: 4 layers make no 9 stages.",
        ),
    ],
)
@pytest.mark.parametrize("key", [None, "text_config", "llm_config"])
def test_heads_and_layers_count_also_where_the_memory_is_not_worked_out(
    folder: Path, tmp_path: Path, option: list[str], message: str, key: str | None
) -> None:
    shape = {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 4}
    source = unmeasured(tmp_path, {key: shape} if key else shape)
    done = gen_config(folder, "--model-id", str(source), "--accelerator-type", "none", *option)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert not any(folder.iterdir())


def test_key_value_heads_count_also_where_the_memory_is_not_worked_out(folder: Path, tmp_path: Path) -> None:
    source = unmeasured(tmp_path, {"num_attention_heads": 12, "num_key_value_heads": 4})
    done = gen_config(folder, "--model-id", str(source), "--accelerator-type", "none", "--tensor-parallelism", "6")
    assert done.returncode == 1
    assert "4 key-value heads cannot be shared by 6 GPUs.\nhint: --tensor-parallelism may be 1, 2, 4." in done.stderr


def unmeasured(folder: Path, config: dict[str, Any]) -> Path:
    """The demo's weights under the configuration of a family whose memory is not computed."""
    source = folder / "source"
    source.mkdir()
    for path in WEIGHTS.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    (source / "config.json").write_text(json.dumps({"model_type": "unheard_of", **config}))
    return source


def test_files_are_written_over_only_with_force(folder: Path) -> None:
    ask = ["--model-id", str(WEIGHTS), "--accelerator-type", "L4"]
    written(folder, gen_config(folder, *ask))
    before = texts(folder)
    refused = gen_config(folder, *ask, "--max-model-len", "512")
    assert refused.returncode == 1
    assert "already exists" in refused.stderr
    assert texts(folder) == before
    model, _ = written(folder, gen_config(folder, *ask, "--max-model-len", "512", "--force"))
    assert model.max_model_len == 512


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_text("")
    done = gen_config(folder, "--model-id", str(WEIGHTS), "--output-dir", str(tmp_path / "file" / "below"))
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert not any(folder.iterdir())


def texts(folder: Path) -> dict[Any, str]:
    return {path: path.read_text() for path in folder.rglob("*.yaml")}
