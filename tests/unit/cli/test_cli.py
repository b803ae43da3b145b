"""The command line: results on stdout, talk on stderr, exit codes, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.config import load_app
from tests.command_line import rayllm

ROOT = Path(__file__).parents[3]
LLAMA3 = ROOT / "models" / "older" / "meta-llama--Meta-Llama-3-8B-Instruct.yaml"
# The worked example of the original documentation.
TRANSCRIPT = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is Paris."},
    {"role": "user", "content": "What about Germany?"},
]
PROMPT = """<|begin_of_text|><|start_header_id|>system<|end_header_id|>

You are a helpful assistant.<|eot_id|><|start_header_id|>user<|end_header_id|>

What is the capital of France?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

The capital of France is Paris.<|eot_id|><|start_header_id|>user<|end_header_id|>

What about Germany?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

"""


def format_prompt(text: str, model: Path = LLAMA3) -> subprocess.CompletedProcess[str]:
    return rayllm("format-prompt", "--model", str(model), "--message-file", "-", stdin=text)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(json.dumps(message) for message in TRANSCRIPT),
        json.dumps({"messages": TRANSCRIPT}),
        json.dumps({"messages": TRANSCRIPT}, indent=2),
        json.dumps(TRANSCRIPT),
    ],
    ids=["a message a line", "one object", "one object over many lines", "a list"],
)
def test_format_prompt_prints_exactly_the_prompt(text: str) -> None:
    done = format_prompt(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, PROMPT, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "holds no messages"),
        ('{"role": "user", "content": "a"}\n{', "line 2 is not valid JSON"),
        ('"hi"', "message 1 must be an object with `role` and `content`"),
        ('{"content": "a"}', "message 1 must be an object"),
        ('{"role": "clown", "content": "a"}', "clown"),
        ('{"role": "tool", "content": "a"}', "tool"),
        ('{"messages": []}', "empty list"),
    ],
)
def test_a_wrong_transcript_is_one_sentence(text: str, expected: str) -> None:
    done = format_prompt(text)
    assert (done.returncode, done.stdout) == (1, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_without_a_format_cannot_show_its_prompt(tmp_path: Path) -> None:
    model = tmp_path / "m.yaml"
    model.write_text("model_loading_config: {model_id: m}")
    done = format_prompt(json.dumps(TRANSCRIPT), model)
    assert done.returncode == 1
    assert "generation_config.prompt_format: is missing" in done.stderr


def test_a_bos_that_only_the_tokenizer_knows_is_told(tmp_path: Path) -> None:
    model = tmp_path / "m.yaml"
    bare = {"system": "{instruction}", "user": "{instruction}", "assistant": "{instruction}"}
    model.write_text(yaml.safe_dump({"model_loading_config": {"model_id": "m"}, "prompt_format": bare}))
    done = format_prompt(json.dumps(TRANSCRIPT[1:2]), model)
    assert (done.returncode, done.stdout) == (0, "What is the capital of France?")
    assert "the tokenizer's own BOS" in done.stderr


def test_validate_tells_every_fault_of_every_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("model_loading_config: {model_id: m}")
    bad.write_text("model_loading_config: {model_id: m}\nfirst: 1\nsecond: 2\n")
    done = rayllm("validate", str(good), str(bad), str(tmp_path / "none.yaml"))
    assert done.returncode == 1
    assert done.stdout == f"{good}: ok, model m\n"
    for expected in ("first: unknown key", "second: unknown key", "none.yaml: cannot be read", "3 faults found"):
        assert expected in done.stderr


def test_validate_takes_folders_and_globs(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yml", "c.yaml"):
        (tmp_path / name).write_text(f"model_loading_config: {{model_id: {name[0]}}}")
    (tmp_path / "notes.txt").write_text("not a model")
    (tmp_path / "empty").mkdir()
    done = rayllm("validate", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rpartition(" ")[2] for line in done.stdout.splitlines()] == ["a", "b", "c"]
    assert rayllm("validate", f"{tmp_path}/[ab].*").stdout.count(": ok, model ") == 2
    done = rayllm("validate", f"{tmp_path}/none*.yaml", f"{tmp_path}/empty")
    assert done.returncode == 1
    for expected in ("none*.yaml: no such file or folder", "empty holds no .yaml or .yml file", "2 faults found"):
        assert expected in done.stderr


def test_the_bundled_configs_are_read_from_anywhere(tmp_path: Path) -> None:
    done = rayllm("validate", str(ROOT / "serve_configs"), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", sorted((ROOT / "serve_configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_build_inlines_every_model_and_changes_nothing_else(path: Path) -> None:
    done = rayllm("build", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    before, after = yaml.safe_load(path.read_text()), yaml.safe_load(done.stdout)
    args, inlined = before["applications"][0].pop("args"), after["applications"][0].pop("args")
    assert before == after
    assert all(isinstance(model, dict) for model in inlined["llm_configs"])
    assert load_app(inlined, ROOT) == load_app(args, path.parent)


def test_a_broken_file_of_keys_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("salt: 1\nkeys: []\n")
    args = {"llm_configs": [str(LLAMA3)], "router": {"keys": "keys.yaml"}}
    done = rayllm("validate", serve_file(tmp_path, application={"args": args}))
    assert done.returncode == 1
    assert f"{tmp_path}/keys.yaml: salt: " in done.stderr


def test_hooks_that_cannot_be_imported_are_faults(tmp_path: Path) -> None:
    (tmp_path / "policy.py").write_text("def check(request): ...\nprint('hello')\n")
    hooks = [{"callable": "policy.py:check"}, {"callable": "policy.py:note"}, {"callable": "no.such_module:check"}]
    args = {"llm_configs": [str(LLAMA3)], "router": {"hooks": hooks}}
    done = rayllm("validate", serve_file(tmp_path, application={"args": args}))
    assert done.returncode == 1
    assert "hooks.0" not in done.stderr
    assert f"args.router: hooks.1.callable: `{tmp_path}/policy.py:note` cannot be imported: " in done.stderr
    assert "args.router: hooks.2.callable: `no.such_module:check` cannot be imported: No module named" in done.stderr


def test_build_inlines_templates_too(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}\n")
    model = {"model_loading_config": {"model_id": "m"}, "chat_template": "./t.jinja"}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(model))
    done = rayllm("build", serve_file(tmp_path, application={"args": {"llm_configs": ["m.yaml"]}}))
    [built] = yaml.safe_load(done.stdout)["applications"][0]["args"]["llm_configs"]
    assert built["chat_template"] == "{{ messages }}\n"


def test_build_leaves_references_to_secrets_as_they_are(tmp_path: Path) -> None:
    model = {"model_loading_config": {"model_id": "m"}, "runtime_env": {"env_vars": {"HF_TOKEN": "${env:HF_TOKEN}"}}}
    done = rayllm("build", serve_file(tmp_path, application={"args": {"llm_configs": [model]}}))
    assert "${env:HF_TOKEN}" in done.stdout


def serve_file(tmp_path: Path, **keys: Any) -> str:
    application = {"name": "x", "import_path": "rayllm:app", "args": {"llm_configs": [str(LLAMA3)]}}
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump({"applications": [application | keys.pop("application", {})]} | keys))
    return str(path)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"application": {"import_path": "other:app"}}, "applications.0.import_path: must be `rayllm:app`"),
        ({"application": {"deployments": []}}, "applications.0.deployments: `rayllm run` does not apply it"),
        ({"logging_config": {}}, "logging_config: `rayllm run` does not apply it; use `serve run`"),
        ({"applications": []}, "`rayllm run` takes one"),
        ({"applications": {}}, "applications: must be a list"),
        ({"http_options": {"host": "0.0.0.0"}}, "would let anyone on the network use the models"),
    ],
)
def test_run_refuses_what_it_would_not_do(tmp_path: Path, keys: dict[str, Any], expected: str) -> None:
    done = rayllm("run", serve_file(tmp_path, **keys))
    assert (done.returncode, done.stdout) == (1, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_verbose_shows_where_an_error_arose(tmp_path: Path) -> None:
    done = rayllm("--verbose", "run", str(tmp_path / "none.yaml"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["validate"], ["format-prompt", "--model", "x"]])
def test_wrong_calls_are_usage(arguments: list[str]) -> None:
    done = rayllm(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: " in done.stderr


def test_help_and_version() -> None:
    assert "format-prompt" in rayllm("--help").stdout
    assert rayllm("--version").stdout.startswith("rayllm, version ")


def test_validate_tells_every_fault_of_every_file_as_json(tmp_path: Path) -> None:
    wrong = tmp_path / "m.yaml"
    wrong.write_text("model_loading_config: {model_id: m}\nnope: 1\nengine_kwargs: {tensor_paralel_size: 2}\n")
    done = rayllm("validate", str(LLAMA3), str(wrong), "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["files"][0] == {"file": str(LLAMA3), "models": ["meta-llama/Meta-Llama-3-8B-Instruct"], "faults": []}
    assert (report["faults"], len(report["files"][1]["faults"])) == (2, 2)


def test_a_shell_completes_verbs_and_options() -> None:
    code = "from rayllm.cli.main import cli; cli(prog_name='rayllm')"
    for words, word in (("rayllm va", "validate"), ("rayllm plan --con", "--context")):
        asked = {"_RAYLLM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
        )
        assert done.stdout.splitlines() == [f"plain,{word}"]


def test_a_model_without_a_file_is_for_this_machine() -> None:
    done = rayllm("run", "org/model", "--address", "10.0.0.1:6379")
    assert done.returncode == 2
    assert "--address needs a file: `rayllm gen-config` writes one" in done.stderr


def test_plan_says_what_it_can_do_without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = rayllm("plan", "nobody/knows-this")
    assert (done.returncode, done.stdout) == (1, "")
    assert "hint: use a local copy" in done.stderr
