"""What a cluster serves now, for operators: models, their replicas, what these do, and why one is not there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from rayllm.cluster import nodes as cluster
from rayllm.cluster.capacity import shortage, wait_for
from rayllm.cluster.placement import Placement
from rayllm.serving.cluster.deployment import deployed
from rayllm.serving.cluster.state.start_progress import Start, starts

logger = logging.getLogger(__name__)

_ANSWER_S = 5.0
_ROUTER = "Router"


@dataclass(frozen=True)
class ReplicaReport:
    """One replica.

    `state` is Ray Serve's; `node` its node's IP address; `age_s` are seconds since it was asked for. Of one that runs:
    requests in hand, the share of the KV cache that they use, tokens generated since it started, the adapters in the
    engine, and the seconds that each phase of its start took. Of one that starts: how far it is, or None where it has
    no place yet.
    """

    id: str
    state: str
    node: str | None
    age_s: float
    ongoing: int = 0
    kv_use: float = 0.0
    generated_tokens: int = 0
    adapters: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    start: Start | None = None


@dataclass(frozen=True)
class ModelReport:
    """One model.

    `status` is Ray Serve's of its deployment; `target` the replicas that there are to be; `waiting` the requests that
    wait for one with room; `reason` says why it is not all there, or is empty.
    """

    application: str
    model_id: str
    status: str
    target: int
    replicas: tuple[ReplicaReport, ...]
    waiting: int = 0
    reason: str = ""

    @property
    def running(self) -> list[ReplicaReport]:
        """The replicas that answer."""
        return [replica for replica in self.replicas if replica.state == "RUNNING"]


def report() -> list[ModelReport]:
    """Every model that RayLLM serves in the cluster that this process is connected to."""
    found = []
    for name, details in deployed.applications().items():
        deployments = details.get("deployments") or {}
        names = _names(deployments)
        waiting = _waiting(name) if names else {}
        for model_id, deployment in names.items():
            if of_model := deployments.get(deployment):
                found.append(_model(name, model_id, deployment, of_model, waiting.get(deployment, 0)))
    return found


def _names(deployments: Mapping[str, Any]) -> Mapping[str, str]:
    """The deployment of each model."""
    user_config = (deployments.get(_ROUTER) or {}).get("deployment_config", {}).get("user_config")
    names: Mapping[str, str] = user_config.get("names", {}) if isinstance(user_config, Mapping) else {}
    return names


def _waiting(application: str) -> dict[str, int]:
    """Requests that wait for a replica, by deployment, in all routers together."""
    found: dict[str, int] = {}
    for answer in _broadcast(application, _ROUTER, "waiting"):
        for deployment, count in answer.items():
            found[deployment] = found.get(deployment, 0) + count
    return found


def _model(application: str, model_id: str, name: str, details: Mapping[str, Any], waiting: int) -> ModelReport:
    listed = details["replicas"]
    answers = {}
    if any(_word(replica["state"]) == "RUNNING" for replica in listed):
        answers = {answer.pop("replica"): answer for answer in _broadcast(application, name, "report")}
    begun = starts(replica["replica_id"] for replica in listed if _word(replica["state"]) == "STARTING")
    replicas = tuple(_replica(each, answers.get(each["replica_id"], {}), begun) for each in listed)
    return ModelReport(
        application,
        model_id,
        _word(details["status"]),
        details["target_num_replicas"],
        replicas,
        waiting,
        _reason(model_id, details, replicas),
    )


def _replica(listed: Mapping[str, Any], answer: Mapping[str, Any], begun: Mapping[str, Start]) -> ReplicaReport:
    return ReplicaReport(
        id=listed["replica_id"],
        state=_word(listed["state"]),
        node=listed.get("node_ip"),
        age_s=round(time.time() - listed["start_time_s"], 1),
        start=begun.get(listed["replica_id"]),
        **{**answer, "adapters": tuple(answer.get("adapters", ()))},
    )


def _broadcast(application: str, deployment: str, method: str) -> list[dict[str, Any]]:
    """What each replica answers; none where they do not in time."""
    try:
        handle = serve.get_deployment_handle(deployment, application)
        return list(handle.broadcast(method).results(timeout_s=_ANSWER_S))
    except (RayError, RayServeException, TimeoutError) as error:
        logger.debug("%s of %s says nothing: %r", deployment, application, error)
        return []


def _reason(model_id: str, details: Mapping[str, Any], replicas: Iterable[ReplicaReport]) -> str:
    """Why a model is not all there."""
    has_no_place = [each for each in replicas if each.state == "STARTING" and each.start is None and not each.node]
    message = str(details.get("message") or "")
    if _word(details["status"]) in ("UNHEALTHY", "DEPLOY_FAILED"):
        return message
    if not has_no_place:
        return ""
    config = details["deployment_config"]
    bundles = config.get("placement_group_bundles") or [details["required_resources"]]
    placement = Placement(tuple(dict(each) for each in bundles), config.get("placement_group_strategy") or "PACK")
    if sentence := shortage(model_id, placement, cluster.nodes()):
        return sentence + (" An autoscaler may add such a node." if cluster.may_grow() else "")
    return wait_for(placement.total(), ray.available_resources())


def _word(value: Any) -> str:
    """What an enumeration of Ray Serve's says."""
    return str(getattr(value, "value", value))
