"""Detached named actors for cluster-wide state.

They outlive an upgrade of RayLLM. The first process of other code that asks for one replaces it with one of its own
code, which takes over the state.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayllm.serving.cluster.deployment.code_version import source_digest

logger = logging.getLogger(__name__)

_NAMESPACE = "rayllm"
_ANSWER_S = 30.0
# In a rolling update processes of the old code still start now and then; they leave the newer actor alone for so long.
# After that, old code that starts is a deliberate return to it.
_RETIRED_S = 3600.0
# Actors that this process has compared with its own code, by name and version.
_checked: set[tuple[str, str]] = set()


@dataclass
class Identity:
    """The code that an actor runs, and the code it has replaced, with the time in seconds since the epoch."""

    version: str
    retired: dict[str, float] = field(default_factory=dict)

    def is_replaced_by(self, version: str, now: float) -> bool:
        """Whether a process of that code has to replace the actor."""
        return version != self.version and self.retired.get(version, float("-inf")) < now - _RETIRED_S

    def retire(self, other: Identity, now: float) -> None:
        """This actor has replaced another one."""
        self.retired |= other.retired | {other.version: now}


class DetachedActor:
    """Base class of detached actors. State moves as plain containers, which every version reads.

    Args:
        version: the code that it runs.
    """

    def __init__(self, version: str = "") -> None:
        self._identity = Identity(version)
        self._has_left = False

    def identity(self) -> dict[str, Any]:
        """The fields of its `Identity`."""
        return {"version": self._identity.version, "retired": self._identity.retired}

    def take_over(self, identity: dict[str, Any], state: dict[str, Any]) -> None:
        """Go on with the state of the actor that this one replaces; what was said here meanwhile counts."""
        self._identity.retire(Identity(**identity), time.time())
        self.restore(state)

    def hand_over(self) -> dict[str, Any]:
        """The state, for the actor that replaces this one. From now on `check_open` refuses."""
        self._has_left = True
        return self.state()

    def check_open(self) -> None:
        """Refuse to be told anything that the actor that replaces this one would not hear of.

        Raises:
            RuntimeError: the state was handed over.
        """
        if self._has_left:
            raise RuntimeError("this actor is being replaced by one of other code; ask again")

    def state(self) -> dict[str, Any]:
        """All that it keeps."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Keep what another one kept as well."""
        raise NotImplementedError


def detached_actor(cls: type[DetachedActor], name: str, version: str | None = None) -> Any:
    """The one actor of that name, made of `cls` if it is not there; started anew, empty, where it dies. It blocks.

    Args:
        cls: what it is made of.
        name: names it in the whole cluster.
        version: of this process's code; None is RayLLM's.
    """
    version = version or source_digest()
    actor = _get(cls, name, version)
    if (name, version) in _checked:
        return actor
    found = _identity_of(actor)
    if found.is_replaced_by(version, time.time()):
        actor = _replaced(actor, found, cls, name, version)
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
        # A replica's child actors would land in its placement group and end with it.
        "scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=None),
    }
    return ray.remote(cls).options(**options).remote(version)


def _identity_of(actor: Any) -> Identity:
    if not hasattr(actor, "identity"):
        return Identity("of a RayLLM that could not be asked")
    return Identity(**ray.get(actor.identity.remote(), timeout=_ANSWER_S))


def _replaced(old: Any, found: Identity, cls: type[DetachedActor], name: str, version: str) -> Any:
    """The actor that takes the place of `old`. Others may do the same at the same time: one of them makes it."""
    try:
        state = ray.get(old.hand_over.remote(), timeout=_ANSWER_S) if hasattr(old, "hand_over") else {}
    except RayError as error:
        # Another process was faster, or it died: those who remember say it again.
        logger.warning("`%s` of other code did not hand over what it keeps: %r", name, error)
        state = {}
    ray.kill(old, no_restart=True)
    new = _get(cls, name, version)
    ray.get(new.take_over.remote({"version": found.version, "retired": found.retired}, state), timeout=_ANSWER_S)
    logger.info("Replaced `%s`, which ran other code.", name)
    return new
