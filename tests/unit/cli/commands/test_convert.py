"""`rayllm convert`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from rayllm.cli.commands.convert import command
from rayllm.config import load_model
from rayllm.core.errors import RayLLMError

OLD = {
    "model_loading_config": {"model_id": "org/chat.v1"},
    "max_request_context_length": 4096,
    "runtime_env": {"env_vars": {"HF_TOKEN": "hf_secretsecretsecret"}},
    "generation": {
        "prompt_format": {"system": "{instruction}\n", "user": "{instruction}", "assistant": "{instruction}"}
    },
    "input_modality": "text",
}


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An older model's file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "old.yaml", OLD)


def write(file: Path, raw: object) -> Path:
    file.write_text(yaml.safe_dump(raw))
    return file


def convert(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_one_file_goes_to_standard_output_and_notes_beside_it(old: Path) -> None:
    done = convert("old.yaml")
    assert done.exit_code == 0, done.output
    assert load_model(write(old.parent / "new.yaml", yaml.safe_load(done.stdout))).max_model_len == 4096
    # A text of several lines stands on one, as prompt formats are written.
    assert '    system: "{instruction}\\n"\n' in done.stdout
    notes = done.stderr.splitlines()
    assert "old.yaml: generation: is now `generation_config`" in notes
    assert any(note.startswith("old.yaml: input_modality: is not carried over: ") for note in notes)
    assert all(line.startswith("old.yaml: ") for line in notes)
    assert "hf_secret" not in done.output
    assert files_below(old.parent) == ["new.yaml", "old.yaml"]


def test_one_file_goes_into_a_file(old: Path) -> None:
    done = convert("old.yaml", "-o", "deep/new.yml")
    assert (done.exit_code, done.stdout) == (0, "deep/new.yml\n")
    assert load_model(old.parent / "deep/new.yml").model_id == "org/chat.v1"


def test_files_go_into_a_folder(old: Path) -> None:
    listed = {"import_path": "rayllm:app", "args": {"llm_configs": ["./old.yaml"]}}
    write(old.parent / "serve.yaml", {"applications": [listed]})
    done = convert("serve.yaml", "--output", "new")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == ["new/serve.yaml", "new/model_config/org--chat_v1.yaml"]
    text = Path("new/serve.yaml").read_text()
    assert yaml.safe_load(text)["applications"][0]["args"] == {"llm_configs": ["./model_config/org--chat_v1.yaml"]}


def test_json_says_what_became_of_each_file(old: Path) -> None:
    done = convert("old.yaml", "-o", "new", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    [file] = json.loads(done.stdout)["files"]
    assert (file["from"], file["form"], file["to"]) == ("old.yaml", "rayllm-1", "new/model_config/org--chat_v1.yaml")
    assert {note["kind"] for note in file["notes"]} == {"added", "renamed", "not_carried", "secret"}
    renamed = {"key": "generation", "kind": "renamed", "text": "is now `generation_config`"}
    assert renamed in file["notes"]


def test_a_file_of_today_comes_out_as_it_is(old: Path) -> None:
    text = "# Ours.\nmodel_loading_config: {model_id: m}\n"
    Path("today.yaml").write_text(text)
    done = convert("today.yaml")
    assert (done.exit_code, done.stdout) == (0, text)
    assert done.stderr == "today.yaml: has the current format, and is unchanged\n"


def test_a_file_that_is_there_stays_unless_it_is_forced(old: Path) -> None:
    Path("new.yaml").write_text("mine")
    done = convert("old.yaml", "-o", "new.yaml")
    assert isinstance(done.exception, RayLLMError)
    assert "new.yaml: already exists.\nhint: --force" in str(done.exception)
    assert Path("new.yaml").read_text() == "mine"
    assert convert("old.yaml", "-o", "old.yaml", "--force").exit_code == 0
    assert load_model("old.yaml").model_id == "org/chat.v1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1", "bad.yaml: not valid YAML: line 1"),
        ("a: 1", "bad.yaml: is neither a model nor a serve config of a known format.\nhint: a model has"),
        ("engine_config: {model_id: m}", "bad.yaml: engine_config: this is a model's file of RayLLM 0"),
    ],
)
def test_nothing_is_written_if_one_file_is_at_fault(text: str, expected: str, old: Path) -> None:
    Path("bad.yaml").write_text(text)
    done = convert("old.yaml", "bad.yaml", "-o", "new")
    assert isinstance(done.exception, RayLLMError)
    assert str(done.exception).startswith(expected)
    assert files_below(old.parent) == ["bad.yaml", "old.yaml"]


@pytest.mark.parametrize(
    "arguments", [[], ["old.yaml", "--json"], ["old.yaml", "today.yaml"], ["old.yaml", "today.yaml", "-o", "new.yaml"]]
)
def test_wrong_calls_are_usage(arguments: list[str], old: Path) -> None:
    Path("today.yaml").write_text("model_loading_config: {model_id: m}")
    done = convert(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage: " in done.stderr


def test_a_missing_file_is_a_fault(old: Path) -> None:
    assert "none.yaml: cannot be read: No such file or directory." in str(convert("none.yaml").exception)
