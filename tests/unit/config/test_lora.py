"""Adapters in configuration files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.config import ModelConfig, RouterConfig, load_app, load_model, model_from
from rayllm.config.load import generation_from
from rayllm.core.errors import ConfigError


def model(lora: dict[str, Any], **keys: Any) -> ModelConfig:
    return model_from({"model_loading_config": {"model_id": "m"}, "lora_config": lora, **keys}, "m.yaml", ())


def modules(config: ModelConfig) -> dict[str, str]:
    assert config.lora_config
    return {module.name: module.path for module in config.lora_config.lora_modules}


def test_both_forms_of_a_module_mean_the_same() -> None:
    short, long = (
        model({"lora_modules": ["x=s3://b/a=1"]}),
        model({"lora_modules": [{"name": "x", "path": "s3://b/a=1"}]}),
    )
    assert modules(short) == modules(long) == {"x": "s3://b/a=1"}
    assert short == long


def test_every_place_is_told() -> None:
    lora = model({"dynamic_lora_loading_path": "/a", "lora_modules": ["x=org/x"]}).lora_config
    assert lora
    assert lora.paths == ["/a", "org/x"]


def test_relative_paths_are_looked_for_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "models" / "here").mkdir(parents=True)
    written = ["a=./here", {"name": "b", "path": "./here"}, "c=org/c", "d=/on/the/nodes", "e=s3://b/e"]
    path = tmp_path / "models" / "m.yaml"
    path.write_text(
        yaml.safe_dump({"model_loading_config": {"model_id": "m"}, "lora_config": {"lora_modules": written}})
    )
    here = str(tmp_path / "models" / "here")
    assert modules(load_model(path)) == {"a": here, "b": here, "c": "org/c", "d": "/on/the/nodes", "e": "s3://b/e"}


@pytest.mark.parametrize("written", ["a=./none", {"name": "a", "path": "./none"}])
def test_a_path_that_is_not_there_is_named(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"lora_config\.lora_modules\.0.*: no such file or folder: "):
        model_from(
            {"model_loading_config": {"model_id": "m"}, "lora_config": {"lora_modules": [written]}}, "m", (Path("/"),)
        )


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("=/x", "must be letters"),
        ("../x=/x", "must be letters"),
        ("a:b=/x", "must be letters"),
        ("org/a=/x", "write `a--b` for `a/b`"),
        ("a..b=/x", "must be letters"),
        ({"name": "x"}, "path"),
        ({"name": "x", "path": "/x", "base_model_name": "y"}, "base_model_name"),
        (7, "lora_modules"),
    ],
)
def test_a_module_that_is_none_is_refused(module: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        model({"lora_modules": [module]})


def test_vllms_own_option_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"`lora_modules` belongs in `lora_config`; move it there"):
        model({}, engine_kwargs={"lora_modules": ["x=/x"]})


@pytest.mark.parametrize("key", ["s3cret", "", "${ADMIN}", "x${env:ADMIN}", "${env:ADMIN} ", "${env:}"])
def test_a_key_must_not_stand_in_a_file(key: str) -> None:
    with pytest.raises(ConfigError, match="a file must not hold a key"):
        load_app({"llm_configs": [{"model_loading_config": {"model_id": "m"}}], "router": {"admin_keys": [key]}})


def test_references_to_keys_are_kept_as_they_are() -> None:
    assert RouterConfig(admin_keys=("${env:ADMIN}",)).admin_keys == ("${env:ADMIN}",)


def test_settings_beside_an_adapter_name_the_file_and_every_fault(tmp_path: Path) -> None:
    path = tmp_path / "rayllm.yaml"
    path.write_text("stopping_sequences: ['']\nstoping_tokens: [1]")
    with pytest.raises(ConfigError) as caught:
        generation_from(path)
    assert len(caught.value.message.splitlines()) == 2
    assert all(line.startswith(f"{path}: sto") for line in caught.value.message.splitlines())


def named(*modules: str, model_id: str = "m", **router: Any) -> dict[str, Any]:
    model = {"model_loading_config": {"model_id": model_id}, "lora_config": {"lora_modules": list(modules)}}
    return {"llm_configs": [model], "router": router}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (named("x"), "lora_modules"),
        (named("x=/a", "x=/b"), "`x` is given twice"),
        (named("m=/a"), "`m` already names a model, an alias or another adapter"),
        (named("gpt=/a", model_aliases={"gpt": "m"}), "`gpt` already names a model, an alias or another adapter"),
    ],
)
def test_an_adapters_name_means_one_thing(args: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_app(args)


def test_two_models_cannot_have_adapters_of_one_name() -> None:
    both = named("x=/a")["llm_configs"] + named("x=/b", model_id="n")["llm_configs"]
    with pytest.raises(ConfigError, match=r"model `n`: .*`x` already names a model, an alias or another adapter"):
        load_app({"llm_configs": both})


@pytest.mark.parametrize("path", ["s3://", "gs:///x", "hf://", "hf://org/repo", "http://x/y", ""])
def test_what_is_no_place_of_adapters(path: str) -> None:
    with pytest.raises(ConfigError, match="must be a folder, s3://bucket"):
        model({"dynamic_lora_loading_path": path})


@pytest.mark.parametrize("path", ["/adapters", "s3://b", "s3://b/x", "gs://b/x/", "hf://org"])
def test_places_of_adapters(path: str) -> None:
    lora = model({"dynamic_lora_loading_path": path}).lora_config
    assert lora
    assert lora.dynamic_lora_loading_path == path


@pytest.mark.parametrize("path", ["/adapters\n", "s3://b/x\ny", "s3://b/\x00", "/a\x1b[2J", "gs://b\r"])
def test_a_place_of_adapters_has_no_control_characters(path: str) -> None:
    with pytest.raises(ConfigError, match=r"dynamic_lora_loading_path: .* no line breaks or other control characters"):
        model({"dynamic_lora_loading_path": path})
