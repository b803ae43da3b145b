"""What `model` may be, and what is said over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.batch.processors.kinds import model_config
from rayllm.config import load_model
from rayllm.config.source import BucketSource, HubSource, LocalSource
from rayllm.core.errors import ConfigError

MODELS = Path(__file__).parents[4] / "models"
DEMO = MODELS / "rayllm-demo.yaml"


def written(folder: Path, **keys: Any) -> Path:
    """A model file with these keys."""
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump({"model_loading_config": {"model_id": "m"}, **keys}))
    return path


@pytest.mark.parametrize(
    ("text", "model_id", "source"),
    [
        ("org/name", "org/name", HubSource(repo_id="org/name")),
        ("gpt2", "gpt2", HubSource(repo_id="gpt2")),
        ("s3://bucket/some/llama/", "llama", BucketSource(bucket_uri="s3://bucket/some/llama/")),
        ("gs://bucket", "bucket", BucketSource(bucket_uri="gs://bucket")),
        ("/mnt/on nodes/my model", "my-model", LocalSource(path="/mnt/on nodes/my model")),
    ],
)
def test_addresses_are_models(text: str, model_id: str, source: Any) -> None:
    model = model_config(text)
    assert (model.model_id, model.source) == (model_id, source)


@pytest.mark.parametrize("text", ["models/llama", "./models/llama", "models/../models/llama/", "."])
def test_folders_are_models_wherever_their_names_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "models/llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path if text != "." else tmp_path / "models/llama")
    model = model_config(text)
    assert model.model_id == "llama"
    assert isinstance(model.source, LocalSource)
    assert Path(model.source.path).samefile(tmp_path / "models/llama")
    assert Path(model.source.path).is_absolute()


def test_a_file_is_read_as_for_serving() -> None:
    assert model_config(DEMO) == model_config(str(DEMO)) == model_config(load_model(DEMO)) == load_model(DEMO)


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_not_overridden_stays(path: Path) -> None:
    model = load_model(path)
    kwargs = {**model.engine_kwargs, "seed": 7}
    assert model_config(model, engine_kwargs={"seed": 7}) == model.model_copy(update={"engine_kwargs": kwargs})


def test_what_is_said_wins_key_by_key() -> None:
    model = model_config(
        DEMO,
        task="embed",
        engine_kwargs={"max_num_seqs": 2, "seed": 1},
        runtime_env={"pip": ["x"], "env_vars": {"A": "1", "OMP_NUM_THREADS": "2"}},
        accelerator_type="l4",
    )
    assert (model.task, model.accelerator_type) == ("embed", "L4")
    assert model.engine_kwargs == {"max_num_seqs": 2, "seed": 1}
    assert model.runtime_env["pip"] == ["x"]
    assert model.runtime_env["env_vars"] == {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "2", "A": "1"}


def test_variables_stay_where_others_things_of_the_environment_are_said() -> None:
    assert "OMP_NUM_THREADS" in model_config(DEMO, runtime_env={"pip": ["x"]}).runtime_env["env_vars"]
    assert model_config("gpt2", runtime_env={"env_vars": {"A": "1"}}).runtime_env == {"env_vars": {"A": "1"}}


@pytest.mark.parametrize(
    ("keys", "kwargs", "found"),
    [
        ({"max_request_context_length": 1024}, {"max_model_len": 512}, ("max_model_len", 512)),
        ({"tensor_parallelism": {"degree": 2}}, {"tensor_parallel_size": 4}, ("tensor_parallel_size", 4)),
        ({"pipeline_parallelism": {"degree": 2}}, {"pipeline_parallel_size": 1}, ("pipeline_parallel_size", 1)),
    ],
)
def test_an_argument_wins_over_its_other_name(
    tmp_path: Path, keys: dict[str, Any], kwargs: dict[str, Any], found: tuple[str, int]
) -> None:
    model = model_config(written(tmp_path, **keys), engine_kwargs=kwargs)
    assert getattr(model, found[0]) == found[1]


def test_an_old_file_keeps_what_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    loading, kwargs = {"model_id": "m"}, {"seed": 1, "max_num_seqs": 3, "tokenizer_pool_size": 2}
    path.write_text(
        yaml.safe_dump({"model_loading_config": loading, "engine_kwargs": kwargs, "runtime_env": {"pip": ["x"]}})
    )
    model = model_config(path, engine_kwargs={"seed": 2}, runtime_env={"env_vars": {"A": "1"}})
    assert model.engine_kwargs == {"seed": 2, "max_num_seqs": 3}
    assert model.runtime_env == {"pip": ["x"], "env_vars": {"A": "1"}}


@pytest.mark.parametrize(
    ("model", "said", "expected"),
    [
        ("org/a/b", {}, "`org/a/b` is neither a hub id like `organisation/name` nor a path"),
        ("./nothing", {}, "model_source: no such file or folder: .*nothing"),
        ("nothing.yaml", {}, "nothing.yaml"),
        ("gpt2", {"engine_kwargs": {"max_num_seq": 1}}, "engine_kwargs: .*max_num_seq.* did you mean `max_num_seqs`"),
        ("gpt2", {"task": "chat"}, "task: input should be 'generate', "),
        ("gpt2", {"runtime_env": {"env_vars": {"A": 1}}}, "runtime_env: `env_vars` must map names to strings"),
        (DEMO, {"runtime_env": {"env_vars": None}}, "runtime_env: `env_vars` must map names to strings"),
        (DEMO, {"runtime_env": {"env_vars": "A"}}, "runtime_env: `env_vars` must map names to strings"),
    ],
)
def test_faults_are_named(model: str | Path, said: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        model_config(model, **said)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match=r"list.yaml: must be a mapping of keys such as `model_loading_config`"):
        model_config(tmp_path / "list.yaml", engine_kwargs={"seed": 1})
    with pytest.raises(ConfigError, match=r"(?s)m.yaml: engine_kwargs: .*"):
        model_config(written(tmp_path, engine_kwargs=[1]), engine_kwargs={"seed": 1})
