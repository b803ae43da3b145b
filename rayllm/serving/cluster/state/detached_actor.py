"""Detached named actors for cluster-wide state.

The actors outlive an upgrade of RayLLM. The first process with other code that gets an actor replaces it by an actor of
its own code, which inherits the state.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayllm.serving.cluster.deployment.code_version import source_digest

logger = logging.getLogger(__name__)

_NAMESPACE = "rayllm"
_ANSWER_S = 30.0
# During a rolling update, processes of the old code still start: for this long they leave a newer actor alone. After
# that, old code is a deliberate rollback.
_RETIRED_S = 3600.0
# Actors whose code this process has checked, by name and version.
_checked: set[tuple[str, str]] = set()


@dataclass
class Identity:
    """The code version of an actor, and the replaced versions with their times in seconds since the epoch."""

    version: str
    retired: dict[str, float] = field(default_factory=dict)

    def is_replaced_by(self, version: str, now: float) -> bool:
        """Whether a process of that version must replace the actor."""
        return version != self.version and self.retired.get(version, float("-inf")) < now - _RETIRED_S

    def retire(self, other: Self, now: float) -> None:
        """Note that this actor has replaced another."""
        self.retired |= other.retired | {other.version: now}


class DetachedActor:
    """Base class of detached actors. State is transferred as plain containers, which every version can read."""

    def __init__(self, version: str = "") -> None:
        self._identity = Identity(version)
        self._is_closed = False

    def identity(self) -> dict[str, Any]:
        return {"version": self._identity.version, "retired": self._identity.retired}

    def take_over(self, identity: dict[str, Any], state: dict[str, Any]) -> None:
        """Merge the identity and the state of the replaced actor; newer entries of this actor win."""
        self._identity.retire(Identity(**identity), time.time())
        self.restore(state)

    def hand_over(self) -> dict[str, Any]:
        """The state for the replacement. From now on `check_open` raises."""
        self._is_closed = True
        return self.state()

    def check_open(self) -> None:
        """Refuse writes that the replacement would not see. Raises RuntimeError if the state has been handed over."""
        if self._is_closed:
            raise RuntimeError("this actor is being replaced by one of other code; ask again")

    def state(self) -> dict[str, Any]:
        """The whole state."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Merge another actor's state."""
        raise NotImplementedError


def detached_actor(cls: type[DetachedActor], name: str, version: str | None = None) -> Any:
    """Get or create the named actor, replacing an actor of code other than `version`. Blocks.

    Ray restarts a dead actor without its state.
    """
    version = version or source_digest()
    actor = _get(cls, name, version)
    if (name, version) in _checked:
        return actor
    identity = _identity_of(actor)
    if identity.is_replaced_by(version, time.time()):
        actor = _replaced(actor, identity, cls, name, version)
    _checked.add((name, version))
    return actor


def _get(cls: type[DetachedActor], name: str, version: str) -> Any:
    options = {
        "name": name,
        "namespace": _NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        # On the head node, as Serve's controller: the loss of another node does not interrupt the actors.
        "resources": {HEAD_NODE_RESOURCE_NAME: 0.001},
        # Otherwise a replica's child actors would be placed in its placement group and end with it.
        "scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=None),
    }
    return ray.remote(cls).options(**options).remote(version)


def _identity_of(actor: Any) -> Identity:
    if not hasattr(actor, "identity"):
        return Identity("of a RayLLM that could not be asked")
    return Identity(**ray.get(actor.identity.remote(), timeout=_ANSWER_S))


def _replaced(old: Any, identity: Identity, cls: type[DetachedActor], name: str, version: str) -> Any:
    """Replace `old`. Of several processes that do so at once, one creates the new actor."""
    try:
        state = ray.get(old.hand_over.remote(), timeout=_ANSWER_S) if hasattr(old, "hand_over") else {}
    except RayError as error:
        # Another process was faster, or the actor died: processes that cache its state restore it.
        logger.warning("`%s` of other code did not hand over its state: %r", name, error)
        state = {}
    ray.kill(old, no_restart=True)
    new = _get(cls, name, version)
    ray.get(new.take_over.remote({"version": identity.version, "retired": identity.retired}, state), timeout=_ANSWER_S)
    logger.info("Replaced `%s`, which ran other code.", name)
    return new
