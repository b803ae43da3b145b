"""The autoscaling policy, alone and in Ray Serve's own autoscaling state. No cluster, no clock."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
from ray.serve._private.autoscaling_state import AutoscalingStateManager
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    HandleMetricReport,
    ReplicaID,
    ReplicaMetricReport,
    TimeStampedValue,
)
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig as ServeAutoscalingConfig
from ray.serve.config import AutoscalingContext

from rayllm.config.scaling import AutoscalingConfig
from rayllm.serving.cluster.autoscaling import EngineLoadPolicy, serve_scaling

MOST = 20
MODEL = DeploymentID(name="m", app_name="app")


def stats(ongoing: float, tokens: float = 0, kv: float = 0) -> dict[str, float]:
    return {"ongoing": ongoing, "queued_tokens": tokens, "kv_use": kv}


def context(
    reports: list[dict[str, float]],
    queued: float = 0,
    running: int | None = None,
    target: int | None = None,
    **keys: Any,
) -> AutoscalingContext:
    """The context that Serve passes to a policy when replicas report `reports`."""
    replicas = [ReplicaID(str(index), MODEL) for index in range(len(reports) if running is None else running)]
    mean = {
        name: {replica: values[name] for replica, values in zip(replicas, reports, strict=False) if name in values}
        for name in ("ongoing", "queued_tokens", "kv_use")
    }
    raw = {
        name: {replica: [TimeStampedValue(0.0, value)] for replica, value in by.items()} for name, by in mean.items()
    }
    served = keys.pop("served", 0.0)
    return AutoscalingContext(
        deployment_id=MODEL,
        deployment_name="m",
        app_name="app",
        current_num_replicas=len(replicas),
        target_num_replicas=len(replicas) if target is None else target,
        running_replicas=replicas,
        total_num_requests=queued + served,
        total_queued_requests=queued,
        aggregated_metrics={name: by for name, by in mean.items() if by},
        raw_metrics={name: by for name, by in (raw | keys.pop("raw", {})).items() if by},
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=100,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=ServeAutoscalingConfig(target_ongoing_requests=10),
    )


def wanted(ctx: AutoscalingContext, **keys: Any) -> int:
    policy = EngineLoadPolicy(
        **{"target_queued_tokens": 1000, "target_kv_use": 0.9} | {"max_ongoing_requests": MOST} | keys
    )
    replicas, state = policy(ctx)
    assert state == {}
    return replicas


@pytest.mark.parametrize(
    ("reports", "replicas"),
    [
        pytest.param([stats(0)], 0, id="idle: none, if `min_replicas` allows it"),
        pytest.param([stats(0.01)], 1, id="anything at all keeps one"),
        pytest.param([stats(10)], 1, id="at the target"),
        pytest.param([stats(11)], 2, id="above the target"),
        pytest.param([stats(20), stats(15)], 4, id="the sum decides"),
        pytest.param([stats(6), stats(5), stats(9)], 2, id="two would be at their targets"),
        pytest.param([stats(6), stats(6), stats(9)], 3, id="two would be above"),
        pytest.param([stats(1, kv=0.95)], 1, id="a request alone fills the cache: nobody to make room for"),
        pytest.param([stats(4, kv=0.95)], 2, id="the cache is full before the hands are"),
        pytest.param([stats(4, kv=0.9)], 1, id="the cache is at its target"),
        pytest.param([stats(4, kv=0.5), stats(4, kv=0.5)], 2, id="one cache could not hold what is in two"),
        pytest.param([stats(4, kv=0.4), stats(4, kv=0.4)], 1, id="one cache could"),
        pytest.param([stats(4, tokens=1001)], 2, id="prompts wait"),
        pytest.param([stats(4, tokens=900)], 1, id="prompts wait, but not for long"),
        pytest.param([stats(4, tokens=100_000)], 2, id="one step at a time, however long the queue"),
        pytest.param([stats(4, tokens=100_000), stats(0)], 2, id="the second is idle: what waits cannot move there"),
        pytest.param([stats(4, tokens=100_000), stats(4, tokens=5000)], 4, id="prompts wait at every replica"),
        pytest.param([stats(1, tokens=150), stats(1, tokens=150)], 2, id="while prompts wait, none goes"),
        pytest.param([stats(1, tokens=50), stats(1, tokens=50)], 1, id="a prompt always waits for a step"),
    ],
)
def test_the_target_that_asks_for_most_decides(reports: list[dict[str, float]], replicas: int) -> None:
    assert wanted(context(reports)) == replicas


@pytest.mark.parametrize(
    ("reports", "queued", "replicas"),
    [
        pytest.param([stats(20)], 200, 22, id="in hand and in front of full hands"),
        pytest.param([stats(5)], 200, 1, id="nothing waits in front of a replica with room: the queue is history"),
        pytest.param([stats(5), stats(20)], 10, 4, id="one is full"),
    ],
)
def test_requests_wait_only_in_front_of_full_replicas(reports: list[Any], queued: float, replicas: int) -> None:
    assert wanted(context(reports, queued)) == replicas


def test_a_target_that_is_null_does_not_count() -> None:
    full = [stats(4, tokens=9000, kv=1.0)]
    assert wanted(context(full), target_queued_tokens=None, target_kv_use=None) == 1


@pytest.mark.parametrize(
    ("reports", "running", "target", "replicas"),
    [
        pytest.param([], 0, 1, 1, id="the first one starts"),
        pytest.param([], 0, 0, 0, id="asleep"),
        pytest.param([stats(0)], 1, 3, 0, id="two start that nobody needs"),
        pytest.param([stats(0)], 2, 2, 2, id="one has reports nothing: it may have its hands full"),
        pytest.param([stats(0)], 2, 3, 3, id="nor is one that starts given up"),
        pytest.param([stats(60)], 2, 2, 6, id="but replicas are added"),
        pytest.param([], 1, 1, 0, id="nobody tells anything, and Serve knows of no request"),
    ],
)
def test_replicas_that_tell_nothing_yet(reports: list[Any], running: int, target: int, replicas: int) -> None:
    assert wanted(context(reports, running=running, target=target)) == replicas


def test_until_replicas_tell_serves_own_count_holds() -> None:
    assert wanted(context([], running=2, served=55)) == 6
    assert wanted(context([], running=1, queued=200)) == 1, "a replica that just started has the queue ahead of it"


@pytest.mark.parametrize(
    ("ongoing", "running", "up", "down", "replicas"),
    [
        (40, 2, 1.0, 1.0, 4),
        (40, 2, 0.5, 1.0, 3),
        (40, 2, 3.0, 1.0, 8),
        (40, 10, 1.0, 0.5, 7),
        (90, 10, 1.0, 0.1, 9),
        (40, 10, 1.0, 2.0, 4),
        (35, 4, 1.0, 0.1, 4),
    ],
)
def test_factors(ongoing: float, running: int, up: float, down: float, replicas: int) -> None:
    reports = [stats(ongoing / running)] * running
    assert wanted(context(reports), upscaling_factor=up, downscaling_factor=down) == replicas


class Controller:
    """Serve's own autoscaling state for a model's options, with a simulated clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "time", lambda: self.now)
        options = serve_scaling(AutoscalingConfig(**keys), MOST)
        config = DeploymentConfig(
            num_replicas=None, max_ongoing_requests=MOST, autoscaling_config=ServeAutoscalingConfig(**options)
        )
        # As it reaches the controller, the policy by value.
        config = DeploymentConfig.from_proto_bytes(config.to_proto_bytes())
        info = DeploymentInfo(config, ReplicaConfig.create(lambda: None), int(self.now), "", version="1")
        self.manager = AutoscalingStateManager()
        self.target = self.manager.register_deployment(MODEL, info, 0)
        self.state = self.manager._app_autoscaling_states["app"]._deployment_autoscaling_states[MODEL]
        self.replicas: list[ReplicaID] = []
        self.history: dict[Any, dict[str, list[TimeStampedValue]]] = {}

    def run(self, reports: list[dict[str, float]], queued: float = 0) -> None:
        """What has started runs and tells this."""
        self.replicas = [ReplicaID(str(index), MODEL) for index in range(len(reports))]
        self.manager.update_running_replica_ids(MODEL, self.replicas)
        self.reports, self.queued = reports, queued

    def seconds(self, count: int) -> int:
        """The target after so many seconds of this."""
        for _ in range(count):
            self.now += 1
            self._tell()
            self.target = self.state.get_decision_num_replicas(self.target)
        return self.target

    def _series(self, key: Any, name: str, value: float) -> list[TimeStampedValue]:
        points = self.history.setdefault(key, {}).setdefault(name, [])
        points.append(TimeStampedValue(self.now, value))
        points[:] = [point for point in points if point.timestamp > self.now - 30]
        return list(points)

    def _tell(self) -> None:
        for replica, values in zip(self.replicas, self.reports, strict=True):
            metrics = {name: self._series(replica, name, value) for name, value in values.items()}
            self.state.record_request_metrics_for_replica(ReplicaMetricReport(replica, metrics, self.now))
        self.state.record_request_metrics_for_handle(
            HandleMetricReport(
                MODEL,
                "handle",
                "actor",
                DeploymentHandleSource.REPLICA,
                self._series("handle", "queued", self.queued),
                {},
                self.now,
            )
        )


def test_two_hundred_first_requests_start_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, min_replicas=0, max_replicas=20, upscaling_factor=4)
    controller.run([])
    assert controller.seconds(20) == 0
    controller.run([], queued=200)
    assert controller.seconds(1) == 1, "at once"
    assert controller.seconds(60) == 1, "and no second one while the first one starts"
    controller.run([{}], queued=0)
    assert controller.seconds(5) == 1
    controller.run([stats(12)])
    assert controller.seconds(30) == 1, "it has taken them on, and the queue is history"


def test_load_that_stays_adds_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, min_replicas=0, max_replicas=5)
    controller.run([], queued=200)
    controller.seconds(20)
    controller.run([stats(20)], queued=180)
    assert controller.seconds(9) == 1, "upscale_delay_s"
    assert controller.seconds(5) == 5, "max_replicas"


def test_serve_keeps_the_delays_of_a_policy_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(
        monkeypatch,
        min_replicas=0,
        initial_replicas=4,
        max_replicas=5,
        downscale_delay_s=100,
        downscale_to_zero_delay_s=50,
        target_ongoing_requests=10,
    )
    controller.run([stats(20), stats(20), stats(0), stats(0)])
    assert controller.seconds(45) == 4
    controller.run([stats(4), stats(4), stats(0), stats(0)])
    assert controller.seconds(90) == 4
    assert controller.seconds(60) == 1, "downscale_delay_s, after the look-back period"
    controller.run([stats(0)])
    assert controller.seconds(75) == 1
    assert controller.seconds(10) == 0, "downscale_to_zero_delay_s, after the look-back period"


def test_a_policy_of_the_users_is_left_alone() -> None:
    chosen = {"policy_function": "ray.serve.autoscaling_policy:default_autoscaling_policy"}
    options = serve_scaling(AutoscalingConfig(policy=chosen, upscaling_factor=2), MOST)
    assert options["policy"] == chosen
    assert options["upscaling_factor"] == 2
    assert not options.keys() & {"target_queued_tokens", "target_kv_use"}


def test_targets_that_would_have_no_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="target_kv_use"):
        AutoscalingConfig(policy={"policy_function": "a:b"}, target_kv_use=0.5)


def test_the_policy_reaches_a_controller_without_rayllm() -> None:
    """Serve pickles it by value, so nothing of ours may be needed where it is loaded."""
    options = ServeAutoscalingConfig(**serve_scaling(AutoscalingConfig(), MOST))
    serialized = options.policy.get_serialized_policy_def()
    assert serialized is not None
    assert b"rayllm.config" not in serialized
    policy = pickle.loads(serialized)(**options.policy.policy_kwargs)
    assert policy(context([stats(30)])) == (3, {})
