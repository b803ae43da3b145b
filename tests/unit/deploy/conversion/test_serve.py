"""Serve configs of older forms, with the files that they list."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayllm.config import AppConfig, load_app, load_model, load_serve_file
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion import FolderNeededError, Report, convert_files
from tests.unit.deploy.conversion.forms import (
    CURRENT,
    EARLY,
    RAY_SERVE_LLM,
    TOKEN,
    Mapping,
)

RAY_APP = "ray.serve.llm:build_openai_app"
OUR_APP = "rayllm:app"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with a model of every form."""
    files = {
        "models/one.yaml": {"model_loading_config": {"model_id": "org/one"}},
        "models/two.yaml": {"model_loading_config": {"model_id": "org/two"}},
        "model_config/early.yaml": EARLY,
        "llm_configs/ray.yaml": RAY_SERVE_LLM,
        "plain.yaml": {"model_loading_config": {"model_id": "org/plain"}},
        "today.yaml": CURRENT,
    }
    for name, raw in files.items():
        write(tmp_path / "old" / name, raw)
    return tmp_path / "old"


def write(file: Path, raw: Mapping) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    return file


def serve(folder: Path, import_path: str, args: Mapping, **keys: Any) -> Path:
    application = {"name": "llms", "route_prefix": "/", "import_path": import_path, "args": args}
    around = {key: keys.pop(key) for key in ("http_options", "query_auth_token_enabled") if key in keys}
    return write(folder / "serve.yaml", {**around, "applications": [application | keys]})


def written(reports: list[Report]) -> None:
    for report in reports:
        assert report.to is not None
        report.to.parent.mkdir(parents=True, exist_ok=True)
        report.to.write_text(report.text)


def converted(file: Path, folder: Path) -> tuple[AppConfig, dict[str, list[str]]]:
    """The application that loads from what a serve config became, and the notes of all files by `file: key`."""
    reports = convert_files([file], folder)
    written(reports)
    [application] = load_serve_file(folder / file.name)
    assert application["import_path"] == OUR_APP
    notes: dict[str, list[str]] = {}
    for report in reports:
        for note in report.changes:
            notes.setdefault(f"{report.source.name}: {note.key}", []).append(note.text)
    return load_app(application["args"], folder), notes


def test_a_token_of_the_application_moves_to_its_models(old: Path, tmp_path: Path) -> None:
    variables = {"HUGGING_FACE_HUB_TOKEN": TOKEN, "WANDB_API_KEY": "${env:WANDB_API_KEY}", "HF_HOME": "/x"}
    file = serve(old, RAY_APP, {"llm_configs": ["plain.yaml"]}, runtime_env={"env_vars": variables})
    app, notes = converted(file, tmp_path / "new")
    expected = {name: f"${{env:{name}}}" for name in ("HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")}
    assert app.models[0].runtime_env == {"env_vars": expected}
    [application] = load_serve_file(tmp_path / "new/serve.yaml")
    assert application["runtime_env"] == {"env_vars": {"HF_HOME": "/x"}}
    key = "serve.yaml: applications.0.runtime_env.env_vars.HUGGING_FACE_HUB_TOKEN"
    assert "export HUGGING_FACE_HUB_TOKEN before you deploy" in notes[key][0]
    assert TOKEN not in str(notes)


def test_a_token_of_another_application_is_left_out(old: Path, tmp_path: Path) -> None:
    file = serve(old, RAY_APP, {"llm_configs": ["plain.yaml"]})
    raw = yaml.safe_load(file.read_text())
    other = {"name": "x", "route_prefix": "/x", "import_path": "my:app", "runtime_env": {"env_vars": {"MY_TOKEN": "x"}}}
    report, *_ = convert_files([write(file, {"applications": [*raw["applications"], other]})], tmp_path)
    assert report.to == tmp_path / "serve.yaml"
    applications = yaml.safe_load(report.text)["applications"]
    assert applications[1] == other | {"runtime_env": {"env_vars": {}}}
    notes = report.changes
    assert {"not_carried", "secret"} <= {note.kind for note in notes if note.key.startswith("applications.1")}


def test_an_application_of_rayllm_1(old: Path, tmp_path: Path) -> None:
    plain = write(old / "model_config/plain.yaml", {"model_loading_config": {"model_id": "org/plain"}})
    args = {"llm_configs": ["./model_config/early.yaml", str(plain)]}
    app, notes = converted(serve(old, OUR_APP, args, query_auth_token_enabled=False), tmp_path / "new")
    assert [model.max_model_len for model in app.models] == [2048, 2048]
    assert "is not carried over" in notes["serve.yaml: query_auth_token_enabled"][0]
    assert "is written as 2048" in notes["plain.yaml: max_request_context_length"][0]


def test_an_application_of_ray_serve_llm(old: Path, tmp_path: Path) -> None:
    plain = write(
        old / "plain.yaml",
        {
            "model_loading_config": {"model_id": "org/plain"},
            "deployment_config": {"autoscaling_config": {"min_replicas": 1}},
        },
    )
    args = {
        "llm_configs": ["llm_configs/ray.yaml", "plain.yaml"],
        "ingress_deployment_config": {
            "num_replicas": 3,
            "max_ongoing_requests": 500,
            "max_queued_requests": -1,
            "autoscaling_config": {"min_replicas": 2},
        },
        "ingress_cls_config": {"ingress_cls": "my.Ingress", "ingress_extra_kwargs": {"a": 1}},
    }
    app, notes = converted(serve(old, RAY_APP, args, http_options={"port": 9000}), tmp_path / "new")
    assert (app.router.num_replicas, app.router.max_ongoing_requests) == (3, 500)
    assert app.router.routing_by_model == {"org/chat-1b": "prefix_aware"}
    scaling = load_model(tmp_path / "new/model_config/org--plain.yaml").deployment_config.autoscaling_config
    assert scaling is not None
    assert scaling.max_replicas == 1
    assert plain.name in str(notes)
    where = "serve.yaml: applications.0.args."
    for key in (
        "ingress_cls_config.ingress_cls",
        "ingress_cls_config.ingress_extra_kwargs",
        "ingress_deployment_config.max_queued_requests",
        "ingress_deployment_config.autoscaling_config",
    ):
        assert "is not carried over" in notes[where + key][0]
    assert yaml.safe_load((tmp_path / "new/serve.yaml").read_text())["http_options"] == {"port": 9000}


def test_models_in_a_serve_config_stay_in_it(old: Path) -> None:
    text = yaml.safe_dump(EARLY | {"model_loading_config": {"model_id": "as-text"}})
    file = serve(old, RAY_APP, {"llm_configs": [deepcopy(RAY_SERVE_LLM), text]})
    [report] = convert_files([file])
    [application] = yaml.safe_load(report.text)["applications"]
    app = load_app(application["args"])
    assert [model.model_id for model in app.models] == ["org/chat-1b", "as-text"]
    assert "applications.0.args.llm_configs.0.server_cls" in {note.key for note in report.changes}


@pytest.mark.parametrize("entry", ["models", "models/*.yaml", "./models/"])
def test_folders_and_globs_mean_all_of_their_files(entry: str, old: Path, tmp_path: Path) -> None:
    app, _ = converted(serve(old, RAY_APP, {"llm_configs": [entry]}), tmp_path / "new")
    assert [model.model_id for model in app.models] == ["org/one", "org/two"]


def test_a_folder_is_converted_whole(old: Path, tmp_path: Path) -> None:
    serve(old, RAY_APP, {"llm_configs": ["plain.yaml"]})
    reports = convert_files([old], tmp_path / "new")
    written(reports)
    names = sorted(str(report.to.relative_to(tmp_path / "new")) for report in reports if report.to)
    assert names == [
        "model_config/org--chat-1b.yaml",
        "model_config/org--chat-8b.yaml",
        "model_config/org--one.yaml",
        "model_config/org--plain.yaml",
        "model_config/org--today.yaml",
        "model_config/org--two.yaml",
        "serve.yaml",
    ]
    assert len(reports) == 7
    for name in names[:-1]:
        load_model(tmp_path / "new" / name)


def test_a_serve_config_of_today_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "# Ours.\napplications:\n- {name: a, import_path: 'rayllm:app', args: {llm_configs: "
        "[{model_loading_config: {model_id: m}}], router: {log_prompts: true}}}\n"
    )
    [report] = convert_files([file])
    assert (report.to, report.text) == (None, file.read_text())
    assert report.is_as_it_was


def test_relative_paths_lead_where_they_led(old: Path, tmp_path: Path) -> None:
    for folder in ("weights", "adapters"):
        (old / folder).mkdir(exist_ok=True)
    (old / "t.jinja").write_text("{{ messages }}")
    raw = {
        "model_loading_config": {"model_id": "m", "model_source": "./weights"},
        "experimental_configs": {},
        "engine_kwargs": {"chat_template": "t.jinja", "lora_modules": ["x=./adapters"]},
        "lora_config": {"dynamic_lora_loading_path": "../old/adapters"},
    }
    written(convert_files([write(old / "m.yaml", raw)], tmp_path / "new"))
    text = (tmp_path / "new/model_config/m.yaml").read_text()
    assert str(tmp_path) not in text
    model = load_model(tmp_path / "new/model_config/m.yaml")
    assert model.chat_template == str(old / "t.jinja")
    assert model.lora_config is not None
    assert model.lora_config.paths == [str(old / "adapters")] * 2
    assert str(old / "weights") in str(model.source)


def test_the_folder_of_batches_leads_where_it_led(old: Path, tmp_path: Path) -> None:
    (old / "batches").mkdir()
    args = {"llm_configs": ["today.yaml"], "router": {"batches": {"storage": "./batches"}}}
    app, _ = converted(serve(old, OUR_APP, args), tmp_path / "new")
    assert app.router.batches is not None
    assert app.router.batches.storage == str(old / "batches")


@pytest.mark.parametrize(
    ("import_path", "args", "output"),
    [
        (
            "ray.serve.llm:build_pd_openai_app",
            {},
            "applications.0.import_path: `ray.serve.llm:build_pd_openai_app` is not carried over",
        ),
        (
            "ray.serve.llm:build_dp_openai_app",
            {},
            "import_path: `ray.serve.llm:build_dp_openai_app` is not carried over",
        ),
        ("my:app", {}, "applications: none serves models"),
        (RAY_APP, {"llm_configs": ["none.yaml"]}, "applications.0.args.llm_configs.0: no such file or folder"),
        (RAY_APP, {"llm_configs": ["no*.yaml"]}, "applications.0.args.llm_configs.0: `no*.yaml` holds no .yaml"),
        (RAY_APP, {"llm_configs": [3]}, "applications.0.args.llm_configs.0: must be a path or a mapping"),
        (RAY_APP, {"llm_configs": ["a: 1\nb: ["]}, "applications.0.args.llm_configs.0: not valid YAML"),
        (RAY_APP, {"llm_configs": []}, "applications.0.args.llm_configs: must be a list"),
        (RAY_APP, {"llm_configs": [CURRENT, CURRENT]}, "applications.0.args: models: duplicate model id: org/today"),
        (RAY_APP, {"llm_configs": [CURRENT], "foo": 1}, "applications.0.args.foo: unknown key"),
        (RAY_APP, {"llm_configs": [CURRENT | {"x": 1}]}, "applications.0.args.llm_configs.0.x: unknown key"),
        (
            "rayllm.backend:router_application",
            {"models": ["models"]},
            "applications.0.import_path: `rayllm.backend:router_application` is RayLLM 0's",
        ),
        (
            "aviary_private_endpoints.backend.server.run:router_application",
            {},
            "use `rayllm:app`, with all models in `args.llm_configs`",
        ),
        (
            OUR_APP,
            {"llm_configs": [CURRENT], "router": {"num_replica": 1}},
            "applications.0.args.router: num_replica: unknown key",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_refused(
    import_path: str, args: Mapping, output: str, old: Path, tmp_path: Path
) -> None:
    file = serve(old, import_path, args)
    with pytest.raises(ConfigError) as raised:
        convert_files([file], tmp_path)
    assert output in raised.value.message
    assert all(line.startswith(str(file)) for line in raised.value.message.splitlines())


def test_every_fault_of_every_file_is_told(old: Path, tmp_path: Path) -> None:
    write(old / "bad.yaml", EARLY | {"x": 1})
    file = serve(old, RAY_APP, {"llm_configs": ["bad.yaml", "none.yaml"]})
    files = [file, old / "bad.yaml", write(old / "worse.yaml", CURRENT | {"y": 1})]
    with pytest.raises(ConfigError) as raised:
        convert_files(files, tmp_path)
    error = raised.value.message
    assert "none.yaml" in error
    assert "bad.yaml: x: unknown key" in error
    assert "worse.yaml: y: unknown key" in error


def test_two_files_do_not_become_one(old: Path, tmp_path: Path) -> None:
    write(old / "again.yaml", CURRENT)
    with pytest.raises(ConfigError, match=r"org--today\.yaml, as .* does; convert them one by one"):
        convert_files([old / "today.yaml", old / "again.yaml"], tmp_path)


def test_several_files_need_a_folder(old: Path, tmp_path: Path) -> None:
    listing = serve(old, OUR_APP, {"llm_configs": ["today.yaml"]})
    for files in ([listing], [old / "today.yaml", old / "plain.yaml"]):
        for target in (None, tmp_path / "x.yaml"):
            with pytest.raises(FolderNeededError):
                convert_files(files, target)
