"""Which changes of a configuration start which replicas anew, as Ray Serve will see them. No cluster."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve._private.config import DeploymentConfig as ServeConfig
from ray.serve._private.config import ReplicaConfig
from ray.serve._private.deploy_utils import deploy_args_to_deployment_info, get_deploy_args
from ray.serve._private.utils import DeploymentOptionUpdateType
from ray.serve._private.version import DeploymentVersion

from rayllm import build_app
from rayllm.config.scaling import DeploymentConfig
from rayllm.serving.cluster.deployment.diff import ROLLING
from tests.unit.deploy.test_composition import config

AUTO = {"autoscaling_config": {"max_replicas": 3}}


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def get_job_id(self) -> str:
            return "01000000"

    monkeypatch.setattr("ray.get_runtime_context", Context)


def versions(*models: dict[str, Any], **router: Any) -> dict[str, DeploymentVersion]:
    """The version of each deployment as Serve's controller has it, through the arguments that it is sent."""
    found: dict[str, DeploymentVersion] = {}

    def walk(value: Any) -> None:
        if (bound := getattr(value, "_bound_deployment", None)) is not None:
            found[bound.name] = version(bound)
            walk([*bound.init_args, *bound.init_kwargs.values()])
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            walk(item)

    walk(build_app({"llm_configs": list(models), "router": router}))
    return found


def version(bound: Any) -> DeploymentVersion:
    # Copied as `build_app` of Serve copies it, and sent with the version of the application.
    copied = bound.options(name=bound.name)
    arguments = get_deploy_args(
        copied.name, copied._replica_config, False, False, copied._deployment_config, "of-the-app"
    )
    arguments.pop("ingress")
    info = deploy_args_to_deployment_info(**arguments, app_name="app")
    assert info.version != "of-the-app"
    replica: ReplicaConfig = info.replica_config
    return DeploymentVersion(
        info.version,
        info.deployment_config,
        replica.ray_actor_options,
        replica.placement_group_bundles,
        replica.placement_group_strategy,
    )


def rolled(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> set[str]:
    """The deployments whose replicas are started anew."""
    old, new = versions(*before), versions(*after)
    return {name for name in old.keys() & new.keys() if old[name].requires_actor_restart(new[name])}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"num_replicas": 1}, {"num_replicas": 4}),
        ({}, AUTO),
        (AUTO, {"autoscaling_config": {"max_replicas": 9, "target_kv_use": 0.5}}),
        ({}, {"max_ongoing_requests": 9}),
        ({}, {"max_queued_requests": 9}),
        ({}, {"graceful_shutdown_timeout_s": 9, "graceful_shutdown_wait_loop_s": 1}),
        ({}, {"health_check_period_s": 9, "health_check_timeout_s": 5}),
        ({}, {"max_constructor_retry_count": 9}),
        ({}, {"max_surge_percent": 100, "rolling_update_percentage": 0.5}),
        ({}, {"logging_config": {"log_level": "DEBUG"}}),
    ],
    ids=lambda options: "-".join(options) or "nothing",
)
def test_what_changes_in_place(before: dict[str, Any], after: dict[str, Any]) -> None:
    models = [[config("a", deployment_config=options), config("b")] for options in (before, after)]
    assert rolled(*models) == set()


@pytest.mark.parametrize(
    "changed",
    [
        {"engine_kwargs": {"max_num_seqs": 7}},
        {"generation_config": {"stopping_sequences": ["x"]}},
        {"runtime_env": {"env_vars": {"A": "1"}}},
        {"tensor_parallelism": {"degree": 2}, "accelerator_type": "A10G"},
        {"deployment_config": {"ray_actor_options": {"num_cpus": 3}}},
    ],
    ids=lambda keys: "-".join(keys),
)
def test_what_starts_one_model_anew_and_no_other(changed: dict[str, Any]) -> None:
    assert rolled([config("a"), config("b")], [config("a") | changed, config("b")]) == {"a"}


def test_models_come_and_go_beside_others() -> None:
    assert rolled([config("a"), config("b")], [config("a"), config("c")]) == set()


def test_a_new_rayllm_starts_everything_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions(config("a"))
    monkeypatch.setattr("rayllm.serving.cluster.deployment.code_version.source_digest", lambda: "another")
    after = versions(config("a"))
    assert all(before[name].requires_actor_restart(after[name]) for name in ("Router", "a"))


def test_serve_changes_in_place_what_is_not_ours_to_roll() -> None:
    heavy = {
        name
        for name, field in ServeConfig.model_fields.items()
        if (field.json_schema_extra or {}).get("update_type") == DeploymentOptionUpdateType.HeavyWeight
    }
    assert not heavy & (DeploymentConfig.model_fields.keys() - ROLLING)
