"""Status of a cluster for operators: models, replicas, their load, and why replicas are missing."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from rayllm.cluster.capacity import live_nodes, may_grow, shortage, wait_for
from rayllm.cluster.placement import Placement
from rayllm.serving.cluster.deployment import deployed
from rayllm.serving.cluster.request_totals import RequestTotals
from rayllm.serving.cluster.state.start_progress import Start, starts

logger = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_ROUTER = "Router"


@dataclass(frozen=True)
class ReplicaReport:
    """One replica. A starting replica has only the first four fields and `start`.

    Attributes:
        state: Ray Serve's state.
        node: IP address of the node; None before placement.
        age_s: seconds since the replica was requested.
        ongoing: requests in progress.
        kv_use: share of the KV cache in use.
        generated_tokens: tokens generated since the start.
        adapters: adapters loaded.
        compute: type and threads that the engine computes with.
        phases: seconds of each phase of the start.
        start: progress of the start; None before placement.
    """

    id: str
    state: str
    node: str | None
    age_s: float
    ongoing: int = 0
    kv_use: float = 0.0
    generated_tokens: int = 0
    adapters: tuple[str, ...] = ()
    compute: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)
    start: Start | None = None


@dataclass(frozen=True)
class ModelReport:
    """One model.

    Attributes:
        status: Ray Serve's status of the deployment.
        target: number of replicas wanted.
        waiting: requests queued in routers.
        totals: counts of all routers.
        reason: why replicas are missing; empty if none is.
    """

    application: str
    model_id: str
    status: str
    target: int
    replicas: tuple[ReplicaReport, ...]
    waiting: int = 0
    totals: RequestTotals = field(default_factory=RequestTotals)
    reason: str = ""

    @property
    def running(self) -> list[ReplicaReport]:
        return [replica for replica in self.replicas if replica.state == "RUNNING"]


def report() -> list[ModelReport]:
    """Every model of RayLLM in the connected cluster."""
    reports = []
    for name, details in deployed.applications().items():
        deployments = details.get("deployments") or {}
        names = deployed.router_options(details).get("names", {})
        requests = _requests(name) if names else {}
        for model_id, deployment in names.items():
            if details_of_model := deployments.get(deployment):
                figures = requests.get(model_id, (0, RequestTotals()))
                reports.append(_model(name, model_id, deployment, details_of_model, *figures))
    return reports


def find_request(request_id: str) -> dict[str, Any] | None:
    """A recent request with its explanation, if a router still keeps its record."""
    return next(iter(_of_routers("find_request", request_id)), None)


def last_requests(count: int) -> list[dict[str, Any]]:
    """The last requests of all routers, the newest first."""
    return sorted(_of_routers("last_requests", count), key=lambda each: -float(each["created"]))[:count]


def _of_routers(method: str, argument: Any) -> list[dict[str, Any]]:
    return [
        each
        for name, details in deployed.applications().items()
        if deployed.router_options(details).get("names")
        for answer in _broadcast(name, _ROUTER, method, argument)
        for each in answer
    ]


def _requests(application: str) -> dict[str, tuple[int, RequestTotals]]:
    """Waiting requests and totals of all routers, by model id."""
    requests: dict[str, tuple[int, RequestTotals]] = {}
    for answer in _broadcast(application, _ROUTER, "report"):
        for model_id, (waiting, totals) in answer.items():
            others_waiting, others_totals = requests.get(model_id, (0, RequestTotals()))
            requests[model_id] = waiting + others_waiting, totals + others_totals
    return requests


def _model(
    application: str, model_id: str, name: str, details: Mapping[str, Any], waiting: int, totals: RequestTotals
) -> ModelReport:
    listed = details["replicas"]
    answers = {}
    if any(_text(replica["state"]) == "RUNNING" for replica in listed):
        answers = {answer.pop("replica"): answer for answer in _broadcast(application, name, "report")}
    starting = starts(replica["replica_id"] for replica in listed if _text(replica["state"]) == "STARTING")
    replicas = tuple(_replica(each, answers.get(each["replica_id"], {}), starting) for each in listed)
    return ModelReport(
        application,
        model_id,
        _text(details["status"]),
        details["target_num_replicas"],
        replicas,
        waiting,
        totals,
        _reason(model_id, details, replicas),
    )


def _replica(listed: Mapping[str, Any], answer: Mapping[str, Any], starting: Mapping[str, Start]) -> ReplicaReport:
    return ReplicaReport(
        id=listed["replica_id"],
        state=_text(listed["state"]),
        node=listed.get("node_ip"),
        age_s=round(time.time() - listed["start_time_s"], 1),
        start=starting.get(listed["replica_id"]),
        **{**answer, "adapters": tuple(answer.get("adapters", ()))},
    )


def _broadcast(application: str, deployment: str, method: str, *arguments: Any) -> list[Any]:
    """The answers of all replicas of a deployment; empty if a replica does not answer in time."""
    try:
        handle = serve.get_deployment_handle(deployment, application)
        return list(handle.broadcast(method, *arguments).results(timeout_s=_TIMEOUT_S))
    except (RayError, RayServeException, TimeoutError) as error:
        logger.debug("%s of %s does not answer: %r", deployment, application, error)
        return []


def _reason(model_id: str, details: Mapping[str, Any], replicas: Iterable[ReplicaReport]) -> str:
    unplaced = [each for each in replicas if each.state == "STARTING" and each.start is None and not each.node]
    message = str(details.get("message") or "")
    if _text(details["status"]) in ("UNHEALTHY", "DEPLOY_FAILED"):
        return message
    if not unplaced:
        return ""
    config = details["deployment_config"]
    bundles = config.get("placement_group_bundles") or [details["required_resources"]]
    placement = Placement(tuple(dict(each) for each in bundles), config.get("placement_group_strategy") or "PACK")
    if sentence := shortage(model_id, placement, live_nodes()):
        return sentence + (" An autoscaler may add such a node." if may_grow() else "")
    return wait_for(placement.total(), ray.available_resources())


def _text(value: Any) -> str:
    """Text of a Ray Serve enum or string."""
    return str(getattr(value, "value", value))
