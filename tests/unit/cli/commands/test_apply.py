"""`rayllm apply` with a picture of a cluster: what it shows, and what it asks Ray Serve for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rayllm.cli.commands.apply import command
from rayllm.config import load_app
from rayllm.core.errors import ClusterError, ConfigError, RayLLMError
from rayllm.serving.cluster.deployment import deployed


@dataclass
class Deployment:
    """As `serve.status` tells it."""

    status: str = "HEALTHY"
    message: str = ""
    replica_states: dict[str, int] = field(default_factory=lambda: {"RUNNING": 1})


@dataclass
class Status:
    """As `serve.status` tells it."""

    status: str
    message: str = ""
    deployments: dict[str, Deployment] = field(default_factory=dict)


class Cluster:
    """What is deployed, and what it will say of itself, one after the other."""

    def __init__(self) -> None:
        self.running: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        self.will_be: list[dict[str, Status]] = []

    def deploy(self, config: dict[str, Any]) -> None:
        self.asked.append(config)
        self.running = {app["name"]: {"deployed_app_config": app} for app in config["applications"]}

    def statuses(self) -> dict[str, Any]:
        healthy = {name: Status("RUNNING", deployments={"Router": Deployment()}) for name in self.running}
        return self.will_be.pop(0) if self.will_be else healthy


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    @contextmanager
    def connected(address: str) -> Iterator[None]:
        assert address == "auto"
        yield

    monkeypatch.setattr("rayllm.cli.commands.apply.connected", connected)
    monkeypatch.setattr("rayllm.cli.commands.apply.time.sleep", lambda seconds: None)
    monkeypatch.setattr(deployed, "applications", lambda: made.running)
    monkeypatch.setattr(deployed, "deploy", made.deploy)
    monkeypatch.setattr(deployed, "statuses", made.statuses)
    monkeypatch.setattr(deployed, "listening", dict)
    return made


def model(model_id: str = "a", **keys: Any) -> dict[str, Any]:
    return {"model_loading_config": {"model_id": model_id}} | keys


def write(path: Path, *models: dict[str, Any], **keys: Any) -> str:
    """A serve config with these models."""
    application = {"name": "llm", "import_path": "rayllm:app", "args": {"llm_configs": list(models)}} | keys
    path.write_text(yaml.safe_dump({"applications": [application]}))
    return str(path)


def apply(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


def fault(result: Result) -> RayLLMError:
    assert isinstance(result.exception, RayLLMError), result.exception
    return result.exception


def test_first_all_is_added_then_only_what_changes(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    first = apply(write(file, model("a"), model("b"), model("c"), model("d")))
    assert first.exit_code == 0, first.exception
    assert first.stdout == "application llm: added\n  + a: added\n  + b: added\n  + c: added\n  + d: added\n"
    assert "All models are healthy." in first.stderr
    changed = [
        model("a", engine_kwargs={"seed": 1}),
        model("b", deployment_config={"num_replicas": 2}),
        model("c"),
        model("e"),
    ]
    second = apply(write(file, *changed))
    assert second.stdout == (
        "application llm: changed\n"
        "  ~ a: rolled (engine_kwargs.seed)\n"
        "  = b: in place (deployment_config.num_replicas)\n"
        "    c: untouched\n"
        "  - d: removed\n"
        "  + e: added\n"
    )
    assert len(cluster.asked) == 2


def test_many_untouched_models_are_counted(cluster: Cluster, tmp_path: Path) -> None:
    models = [model(f"m{number}") for number in range(22)]
    apply(write(tmp_path / "s.yaml", *models))
    second = apply(write(tmp_path / "s.yaml", model("m0", engine_kwargs={"seed": 1}), *models[1:]))
    assert second.stdout == (
        "application llm: changed\n  ~ m0: rolled (engine_kwargs.seed)\n    21 models: untouched\n"
    )


def test_a_dry_run_shows_and_does_nothing(cluster: Cluster, tmp_path: Path) -> None:
    done = apply(write(tmp_path / "s.yaml", model("a")), "--dry-run", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "applications": [
            {
                "name": "llm",
                "effect": "added",
                "models": [{"model_id": "a", "effect": "added", "keys": []}],
                "router_keys": [],
                "keys": [],
            }
        ]
    }
    assert cluster.asked == []


def test_models_are_sent_whole(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(model("a")))
    apply(write(tmp_path / "serve.yaml", args={"llm_configs": ["a.yaml"], "router": {"max_body_bytes": 2048}}))
    [sent] = cluster.asked[0]["applications"]
    assert sent["args"] == {"llm_configs": [model("a")], "router": {"max_body_bytes": 2048}}


def test_a_model_file_leaves_other_applications_alone(cluster: Cluster, tmp_path: Path) -> None:
    apply(write(tmp_path / "serve.yaml", model("a"), route_prefix="/a"))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(model("b")))
    done = apply(str(tmp_path / "b.yaml"))
    assert done.stdout == ("application llm: untouched\n    a: untouched\napplication rayllm: added\n  + b: added\n")
    assert [app["name"] for app in cluster.asked[1]["applications"]] == ["llm", "rayllm"]


def test_a_serve_config_replaces_those_before(cluster: Cluster, tmp_path: Path) -> None:
    apply(write(tmp_path / "one.yaml", model("a"), name="one"))
    cluster.running["by-hand"] = {"deployed_app_config": None}
    done = apply(write(tmp_path / "two.yaml", model("a"), name="two"))
    assert "application one: removed\n  - a: removed\n" in done.stdout
    assert "by-hand" not in done.stdout


def test_an_application_that_no_file_describes_is_not_known(cluster: Cluster, tmp_path: Path) -> None:
    cluster.running["llm"] = {"deployed_app_config": None}
    assert "  ? a: unknown\n" in apply(write(tmp_path / "s.yaml", model("a"))).stdout


@pytest.mark.parametrize("as_told", [json.dumps, dict], ids=["a text", "a mapping of an earlier version"])
def test_what_the_router_was_told_says_what_runs(
    cluster: Cluster, tmp_path: Path, as_told: Callable[[dict[str, Any]], Any]
) -> None:
    user_config = {"config": as_told({"models": [model("a")]})}
    router = {"Router": {"deployment_config": {"user_config": user_config}}}
    cluster.running["llm"] = {"deployed_app_config": None, "deployments": router}
    assert "    a: untouched\n  + b: added\n" in apply(write(tmp_path / "s.yaml", model("a"), model("b"))).stdout


def test_a_runtime_environment_for_all_starts_all_anew(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    apply(write(file, model("a")))
    done = apply(write(file, model("a"), runtime_env={"env_vars": {"A": "1"}}))
    assert "  ~ a: rolled (runtime_env)\n" in done.stdout


def test_a_failure_is_told_with_the_replicas_own_reason(cluster: Cluster, tmp_path: Path) -> None:
    trace = "Traceback\n  File x\nrayllm.core.errors.EngineError: model `a`: vLLM refuses it: no such dtype.\n"
    bad = Deployment("DEPLOY_FAILED", trace, {"STARTING": 1})
    cluster.will_be = [
        {"llm": Status("DEPLOYING", deployments={"a": Deployment("UPDATING", "", {"STARTING": 1})})},
        {"llm": Status("DEPLOY_FAILED", "Failed to update", {"a": bad, "Router": Deployment()})},
    ]
    done = apply(write(tmp_path / "s.yaml", model("a")))
    assert done.exit_code == 1
    assert fault(done).message == "application `llm`: deploy failed: `a`: model `a`: vLLM refuses it: no such dtype."
    assert "a: updating (1 starting)" in done.stderr


def test_waiting_ends(cluster: Cluster, tmp_path: Path) -> None:
    cluster.will_be = [{"llm": Status("DEPLOYING")}] * 9
    error = fault(apply(write(tmp_path / "s.yaml", model("a")), "--timeout", "0"))
    assert isinstance(error, ClusterError)
    assert error.message.startswith("not healthy after 0 s: llm")


def test_nobody_waits_who_does_not_want_to(cluster: Cluster, tmp_path: Path) -> None:
    cluster.will_be = [{"llm": Status("DEPLOY_FAILED", "never seen")}]
    done = apply(write(tmp_path / "s.yaml", model("a")), "--no-wait")
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_wrong_file_is_told_before_any_cluster_is_asked(tmp_path: Path) -> None:
    error = fault(apply(write(tmp_path / "s.yaml", model("a", nope=1))))
    assert isinstance(error, ConfigError)
    assert "nope: unknown key" in error.message


def test_what_another_version_has_told_the_router_is_not_known(cluster: Cluster, tmp_path: Path) -> None:
    router = {"Router": {"deployment_config": {"user_config": {"config": '{"models": [], "other": 1}'}}}}
    cluster.running["llm"] = {"deployed_app_config": None, "deployments": router}
    assert "  ? a: unknown\n" in apply(write(tmp_path / "s.yaml", model("a"))).stdout


def test_a_model_is_added_to_those_that_run(cluster: Cluster, tmp_path: Path) -> None:
    router = {"model_aliases": {"other": "a"}}
    user_config = {"config": json.dumps({"models": [model("a"), model("b")], "router": router})}
    cluster.running["rayllm"] = {
        "deployed_app_config": {"name": "rayllm", "route_prefix": "/llm", "import_path": "rayllm:app", "args": {}},
        "deployments": {"Router": {"deployment_config": {"user_config": user_config}}},
    }
    file = tmp_path / "b.yaml"
    file.write_text(yaml.safe_dump({**model("b"), "max_request_context_length": 7}))
    done = apply(str(file), "--add")
    assert "    a: untouched\n  ~ b: rolled (max_request_context_length)\n" in done.stdout
    [application] = cluster.asked[-1]["applications"]
    assert application["route_prefix"] == "/llm"
    config = load_app(application["args"])
    assert [each.model_id for each in config.models] == ["a", "b"]
    assert config.models[1].max_model_len == 7
    assert config.router.model_aliases == {"other": "a"}


def test_what_cannot_be_added(cluster: Cluster, tmp_path: Path) -> None:
    assert "--add takes a model's YAML" in apply(write(tmp_path / "s.yaml", model("a")), "--add").stderr
    cluster.running["rayllm"] = {"deployed_app_config": None, "deployments": {}}
    file = tmp_path / "b.yaml"
    file.write_text(yaml.safe_dump(model("b")))
    assert "its configuration is unknown" in fault(apply(str(file), "--add")).message
