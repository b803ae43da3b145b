"""Configurations to a Serve application, with no cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from starlette.datastructures import Headers

from rayllm import build_app
from rayllm.access.key import key_hash
from rayllm.core.errors import ConfigError
from rayllm.serving.router.http.admin_keys import AdminKeys


def config(model_id: str = "m", **keys: Any) -> dict[str, Any]:
    return {"model_loading_config": {"model_id": model_id}} | keys


def deployments(*models: dict[str, Any], **router: Any) -> dict[str, Any]:
    """Each deployment of the application by name."""
    found: dict[str, Any] = {}

    def walk(value: Any) -> None:
        bound = getattr(value, "_bound_deployment", None)
        if bound is not None:
            found[bound.name] = bound
            for argument in (*bound.init_args, *bound.init_kwargs.values()):
                walk(argument)
        elif isinstance(value, dict):
            for item in value.values():
                walk(item)

    walk(build_app({"llm_configs": list(models), "router": router}))
    assert not ray.is_initialized()
    return found


def test_one_router_and_a_deployment_a_model() -> None:
    assert deployments(config("org/a-1.5"), config("b")).keys() == {"Router", "org--a-1_5", "b"}


def test_ids_that_would_share_a_name_get_names_of_their_own() -> None:
    names = deployments(config("a/b"), config("a--b"), config("Router")).keys()
    assert len(names) == 4
    assert "Router" in names


def test_limits_are_finite_and_follow_the_engine() -> None:
    made = deployments(config(engine_kwargs={"max_num_seqs": 10}, deployment_config={"autoscaling_config": {}}))["m"]
    assert made.max_ongoing_requests == 10
    assert made.max_queued_requests == 40
    scaling = made._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (1, 10, 6.0)


def test_options_reach_serve() -> None:
    options = {"num_replicas": 3, "max_ongoing_requests": 7, "max_queued_requests": 1, "health_check_period_s": 3}
    made = deployments(config(deployment_config=options | {"graceful_shutdown_timeout_s": 9}))["m"]
    assert (made.num_replicas, made.max_ongoing_requests, made.max_queued_requests) == (3, 7, 1)
    internal = made._deployment_config
    assert (internal.health_check_period_s, internal.graceful_shutdown_timeout_s) == (3, 9)


def test_the_placement_group_holds_the_actor_first() -> None:
    made = deployments(config(accelerator_type="A100-80G", tensor_parallelism={"degree": 2}))["m"]
    replica = made._replica_config
    assert replica.placement_group_bundles == [{"CPU": 1.0}, *[{"GPU": 1.0, "accelerator_type:A100-80G": 0.001}] * 2]
    assert replica.placement_group_strategy == "STRICT_PACK"
    assert replica.ray_actor_options["num_cpus"] == 1


def test_runtime_environments_are_merged_and_secrets_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    made = deployments(
        config(
            runtime_env={"env_vars": {"B": "${env:SECRET}"}, "working_dir": "s3://x/y.zip"},
            deployment_config={"ray_actor_options": {"runtime_env": {"env_vars": {"A": "1"}}}},
        )
    )["m"]
    made_env = made.ray_actor_options["runtime_env"]
    assert made_env["env_vars"] == {"A": "1", "B": "s3cret"}
    assert made_env["working_dir"] == "s3://x/y.zip"


def test_a_secret_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"runtime_env\.env_vars\.B: the environment variable `NO_SUCH` is not set"):
        deployments(config(runtime_env={"env_vars": {"B": "${env:NO_SUCH}"}}))


@pytest.mark.parametrize("key", ["download_timeout_s", "max_download_tries"])
def test_a_folder_of_adapters_has_no_options_of_downloads(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"model `m`: lora_config\.{key}: a local folder has no downloads"):
        deployments(config(lora_config={"dynamic_lora_loading_path": "/x", key: 2}))


@pytest.mark.parametrize(
    "lora",
    [
        {"dynamic_lora_loading_path": "s3://x/y"},
        {"dynamic_lora_loading_path": "hf://org"},
        {"dynamic_lora_loading_path": "/x", "lora_modules": ["a=gs://x/y"]},
    ],
)
def test_adapters_of_a_store_have_options_of_downloads(lora: dict[str, Any]) -> None:
    assert "m" in deployments(config(lora_config={**lora, "download_timeout_s": 2, "max_download_tries": 2}))


def test_ray_serve_reads_how_often_routers_report() -> None:
    environment = deployments(config())["Router"].ray_actor_options["runtime_env"]["env_vars"]
    code = "from ray.serve._private import constants; print(constants.RAY_SERVE_METRICS_EXPORT_INTERVAL_MS)"
    intervals = [
        int(subprocess.run([sys.executable, "-c", code], env=each, capture_output=True, text=True, check=True).stdout)
        for each in ({**os.environ}, {**os.environ, **environment})
    ]
    assert intervals == [100, 10000]


def test_the_router_has_only_digests_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a s3cret of many letters"
    monkeypatch.setenv("ADMIN_KEY", key)
    found = [deployments(config(), admin_keys=["${env:ADMIN_KEY}", "${env:ADMIN_KEY}"])["Router"] for _ in range(2)]
    first, second = (router._deployment_config.user_config for router in found)
    assert first["admin_digests"] == 2 * [key_hash(key, bytes.fromhex(first["admin_salt"]))]
    assert first["admin_digests"] != second["admin_digests"], "each deployment has its own salt"
    assert "s3cret" not in repr(first)
    request = Headers({"authorization": f"Bearer {key}"})
    assert AdminKeys(first["admin_digests"], bytes.fromhex(first["admin_salt"])).has(request)
    assert not AdminKeys(first["admin_digests"], bytes.fromhex(second["admin_salt"])).has(request)


def test_a_short_key_of_an_administrator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEY", "fifteen letters")
    refused = r"router\.admin_keys\.0: the key in `\$\{env:ADMIN_KEY\}` has fewer than 16 characters"
    with pytest.raises(ConfigError, match=refused) as raised:
        deployments(config(), admin_keys=["${env:ADMIN_KEY}"])
    assert "fifteen" not in raised.value.message
    for allowed in ("sixteen letters!", ""):
        monkeypatch.setenv("ADMIN_KEY", allowed)
        assert deployments(config(), admin_keys=["${env:ADMIN_KEY}"])


def test_a_key_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"router\.admin_keys\.0: the environment variable `NO_SUCH` is not set"):
        deployments(config(), admin_keys=["${env:NO_SUCH}"])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "holds no config.json"),
        (["config.json"], r"holds no \*\.safetensors file"),
        (["config.json", "pytorch_model.bin"], "holds only pickled weights .*allow_pickle_weights: true"),
    ],
)
def test_a_folder_without_safetensors_is_refused_before_anything_starts(
    tmp_path: Path, files: list[str], said: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    model = {"model_loading_config": {"model_id": "m", "model_source": str(tmp_path)}}
    with pytest.raises(ConfigError, match=said):
        deployments(model)


def test_pickled_weights_are_taken_when_allowed(tmp_path: Path) -> None:
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / name).touch()
    loading = {"model_id": "m", "model_source": str(tmp_path), "allow_pickle_weights": True}
    assert "m" in deployments({"model_loading_config": loading})
