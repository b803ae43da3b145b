"""`rayllm pull`"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rayllm.cli.commands.pull import command, progress
from rayllm.core.errors import ConfigError, SourceError
from tests.servers.s3 import S3Server

DEMO = Path(__file__).parents[4] / "models/rayllm-demo.yaml"


def test_the_last_line_is_the_folder() -> None:
    result = CliRunner().invoke(command, [str(DEMO)])
    assert result.exit_code == 0, result.output
    assert Path(result.stdout.splitlines()[-1]) == DEMO.parent / "rayllm-demo/weights"


@pytest.mark.usefixtures("cache_folder")
def test_the_weights_are_those_of_the_format_that_is_loaded(tmp_path: Path, s3: S3Server) -> None:
    files = ("config.json", "params.json", "consolidated.safetensors", "model.safetensors")
    s3.put("pulled", dict.fromkeys(files, b"{}"))
    model = tmp_path / "m.yaml"
    loading = "model_loading_config: {model_id: m, model_source: {bucket_uri: 's3://pulled'}}"
    model.write_text(f"{loading}\nengine_kwargs: {{load_format: mistral}}")
    result = CliRunner().invoke(command, [str(model), "--quiet"])
    assert result.exit_code == 0, result.output
    pulled = {path.name for path in Path(result.stdout.splitlines()[-1]).iterdir()}
    assert pulled == set(files) - {"model.safetensors"}


def test_what_cannot_be_had_fails(tmp_path: Path) -> None:
    model = tmp_path / "m.yaml"
    model.write_text("model_loading_config: {model_id: m, model_source: /nowhere/at/all}")
    result = CliRunner().invoke(command, [str(model)])
    assert isinstance(result.exception, SourceError)
    assert "is not a folder on this node" in result.exception.message
    assert not result.stdout


def follow(quiet: bool) -> None:
    shown = progress(quiet)
    shown.start("s3://b/m", 1000)
    shown.advance(600)
    shown.advance(400)
    shown.finish()


def test_a_bar_is_full_in_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    follow(quiet=False)
    shown = capfd.readouterr()
    assert "s3://b/m" in shown.err
    assert "1.0/1.0 kB" in shown.err
    assert not shown.out


def test_where_nobody_looks_the_log_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "rayllm"):
        follow(quiet=True)
    assert [line.split(" in ")[0] for line in caplog.messages] == ["Fetching s3://b/m: 1.0 kB.", "Fetched s3://b/m"]


ADAPTERS = Path(__file__).parents[4] / "models" / "rayllm-demo" / "adapters"


@pytest.mark.usefixtures("cache_folder")
def test_adapters_come_before_the_weights(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(DEMO), "--all-adapters"])
    assert result.exit_code == 0, result.output
    *adapters, weights = map(Path, result.stdout.splitlines())
    assert weights == DEMO.parent / "rayllm-demo/weights"
    assert len(adapters) == len(list(ADAPTERS.iterdir())) == 2
    assert all((folder / "adapter_config.json").is_file() for folder in adapters)
    one = CliRunner().invoke(command, [str(DEMO), "--adapter", "pirate"])
    assert one.stdout.splitlines()[0] in map(str, adapters)


@pytest.mark.usefixtures("cache_folder")
def test_an_adapter_that_is_not_there_fails_and_others_come() -> None:
    result = CliRunner().invoke(command, [str(DEMO), "--adapter", "nobody", "--adapter", "shout"])
    assert isinstance(result.exception, SourceError)
    assert "has no adapter `nobody`" in result.exception.message
    assert len(result.stdout.splitlines()) == 2


def test_a_model_without_adapters_has_none_to_fetch(tmp_path: Path) -> None:
    model = tmp_path / "m.yaml"
    model.write_text(f"model_loading_config: {{model_id: m, model_source: {DEMO.parent / 'rayllm-demo/weights'}}}")
    result = CliRunner().invoke(command, [str(model), "--all-adapters"])
    assert isinstance(result.exception, ConfigError)
    assert "it has no lora_config" in result.exception.message
