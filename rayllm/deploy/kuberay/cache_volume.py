"""The volume where pods cache weights and adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rayllm.core.errors import ConfigError
from rayllm.deploy.kuberay.quantity import parse_quantity

MOUNT = "/cache"
"""Mount path in every pod."""
_NAME = "model-cache"


@dataclass(frozen=True)
class CacheVolume:
    """A volume for the cache.

    `emptyDir` is deleted with its pod, `hostPath` stays on the node for later pods, `pvc` is one claim for all pods.
    `value` is the size limit of an `emptyDir` (may be empty), the path of a `hostPath`, or the claim's name.
    """

    kind: Literal["emptyDir", "hostPath", "pvc"] = "emptyDir"
    value: str = ""

    @property
    def volume(self) -> dict[str, Any]:
        """The pod's volume."""
        sources: dict[str, dict[str, Any]] = {
            "emptyDir": {"emptyDir": {"sizeLimit": self.value} if self.value else {}},
            "hostPath": {"hostPath": {"path": self.value, "type": "DirectoryOrCreate"}},
            "pvc": {"persistentVolumeClaim": {"claimName": self.value}},
        }
        return {"name": _NAME, **sources[self.kind]}

    @property
    def mount(self) -> dict[str, Any]:
        """The container's volume mount."""
        return {"name": _NAME, "mountPath": MOUNT}

    @property
    def needs_chown(self) -> bool:
        """Whether the volume belongs to root and needs a chown: `fsGroup` does not apply to `hostPath`."""
        return self.kind == "hostPath"


def parse_cache_volume(text: str) -> CacheVolume:
    """Parse `--model-cache`: `emptyDir`, `emptyDir:200Gi`, `hostPath:/path` or `pvc:claim`.

    Raises:
        ConfigError: it is none of these.
    """
    kind, _, value = text.partition(":")
    if kind == "emptyDir":
        if value:
            parse_quantity(value, "--model-cache")
        return CacheVolume("emptyDir", value)
    if kind == "hostPath" and value.startswith("/") and ".." not in value.split("/"):
        return CacheVolume("hostPath", value)
    if kind == "pvc" and value:
        return CacheVolume("pvc", value)
    raise ConfigError(f"--model-cache: `{text}` must be emptyDir, emptyDir:200Gi, hostPath:/folder or pvc:CLAIM.")
