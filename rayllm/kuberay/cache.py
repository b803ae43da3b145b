"""Where pods keep the weights and adapters that they fetch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rayllm.errors import ConfigError
from rayllm.kuberay.quantity import read_quantity

MOUNT = "/cache"
"""Where the volume stands in a pod."""
_NAME = "model-cache"


@dataclass(frozen=True)
class Cache:
    """A volume for the cache.

    `emptyDir` goes with its pod, `hostPath` stays on the node for the next pod there, `pvc` is one claim for all pods.
    `place` is the size limit of an `emptyDir`, "" for none, the path of a `hostPath`, or the claim's name.
    """

    kind: Literal["emptyDir", "hostPath", "pvc"] = "emptyDir"
    place: str = ""

    @property
    def volume(self) -> dict[str, Any]:
        """The pod's volume."""
        sources: dict[str, dict[str, Any]] = {
            "emptyDir": {"emptyDir": {"sizeLimit": self.place} if self.place else {}},
            "hostPath": {"hostPath": {"path": self.place, "type": "DirectoryOrCreate"}},
            "pvc": {"persistentVolumeClaim": {"claimName": self.place}},
        }
        return {"name": _NAME, **sources[self.kind]}

    @property
    def mount(self) -> dict[str, Any]:
        """The container's mount of it."""
        return {"name": _NAME, "mountPath": MOUNT}

    @property
    def needs_owner(self) -> bool:
        """Whether the volume is root's until somebody hands it over: `fsGroup` does nothing to a node's folders."""
        return self.kind == "hostPath"


def read_cache(text: str) -> Cache:
    """A cache as it is written on the command line: `emptyDir`, `emptyDir:200Gi`, `hostPath:/path` or `pvc:claim`.

    Raises:
        ConfigError: it is none of these.
    """
    kind, _, place = text.partition(":")
    if kind == "emptyDir":
        if place:
            read_quantity(place, "--model-cache")
        return Cache("emptyDir", place)
    if kind == "hostPath" and place.startswith("/") and ".." not in place.split("/"):
        return Cache("hostPath", place)
    if kind == "pvc" and place:
        return Cache("pvc", place)
    raise ConfigError(f"--model-cache: `{text}` must be emptyDir, emptyDir:200Gi, hostPath:/folder or pvc:CLAIM.")
