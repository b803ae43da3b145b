"""Readiness, from what the router knows and from Serve's controller."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping

import pytest
from ray.exceptions import RayError

from rayllm.config import load_app
from rayllm.core.errors import UnavailableError
from rayllm.serving.cluster.state.start_progress import Start
from rayllm.serving.router import readiness
from rayllm.serving.router.readiness import Deployments, Readiness


class Controller:
    """Answers once it is released, and counts calls."""

    def __init__(self, statuses: Mapping[str, str], starts: Mapping[str, Start] | None = None) -> None:
        self.answer = Deployments(statuses, starts or {})
        self.asked = 0
        self.is_away = False
        self.open = threading.Event()
        self.open.set()

    def __call__(self) -> Deployments:
        self.asked += 1
        self.open.wait(10)
        if self.is_away:
            raise RayError("the controller is away")
        return self.answer


def deployment_states(controller: Controller, running: set[str] = frozenset(), min_replicas: int = 1) -> Readiness:  # type: ignore[assignment]
    scaling = {"autoscaling_config": {"min_replicas": min_replicas, "max_replicas": 2}}
    models = [{"model_loading_config": {"model_id": name}, "deployment_config": scaling} for name in ("a", "b")]
    config = load_app({"llm_configs": models})
    return Readiness(config, {"a": "A", "b": "B"}, lambda model: model in running, controller)


async def test_models_with_replicas_are_ready_without_the_controller() -> None:
    controller = Controller({})
    controller.is_away = True
    found = deployment_states(controller, {"a", "b"})
    assert [await found.not_ready_reason(model) for model in ("a", "b")] == [None, None]
    assert controller.asked == 0


async def test_a_model_without_a_replica_is_ready_only_if_it_sleeps() -> None:
    controller = Controller({"A": "healthy"})
    assert await deployment_states(controller, min_replicas=0).not_ready_reason("a") is None
    found = deployment_states(controller)
    assert await found.not_ready_reason("a") == "it has no running replica (healthy)"
    assert await found.not_ready_reason("b") == "it is not deployed"


async def test_each_model_says_which_phase_it_is_in() -> None:
    start = Start("fetch", time.time() - 12, 2_000_000_000, 8_000_000_000)
    found = deployment_states(Controller({"A": "updating", "B": "updating"}, {"a": start}))
    assert [await found.phase(model) for model in ("a", "b")] == ["fetch", "waiting"]
    reason = "it has no running replica (updating); one is starting: fetch since 12 s, 25% of 8.0 GB"
    assert await found.not_ready_reason("a") == reason
    asleep = deployment_states(Controller({"A": "healthy"}), {"b"}, min_replicas=0)
    assert [await asleep.phase(model) for model in ("a", "b")] == ["scaled to zero", "running"]
    assert await deployment_states(Controller({})).phase("a") == "not deployed"


async def test_many_who_ask_while_the_controller_is_away_wait_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_ANSWER_S", 0.2)
    controller = Controller({})
    controller.open.clear()
    found = deployment_states(controller)
    asked = await asyncio.gather(*(found.not_ready_reason("a") for _ in range(100)), return_exceptions=True)
    controller.open.set()
    assert {type(answer) for answer in asked} == {UnavailableError}
    # One call for all of them, none after another; and nobody asks again while it rests.
    with pytest.raises(UnavailableError):
        await found.not_ready_reason("b")
    assert controller.asked == 1


async def test_a_controller_that_comes_back_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_REST_S", 0.0)
    controller = Controller({"A": "updating"})
    controller.is_away = True
    found = deployment_states(controller)
    with pytest.raises(UnavailableError):
        await found.not_ready_reason("a")
    controller.is_away = False
    assert await found.not_ready_reason("a") == "it has no running replica (updating)"


async def test_a_model_at_zero_that_another_router_has_woken_is_running() -> None:
    controller = Controller({})
    controller.answer = Deployments({"A": "healthy", "B": "healthy"}, {}, frozenset({"A"}))
    states = deployment_states(controller, min_replicas=0)
    assert [await states.phase(name) for name in ("a", "b")] == ["running", "scaled to zero"]
