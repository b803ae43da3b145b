"""Which nodes pods are to stand on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayllm.errors import ConfigError
from rayllm.kuberay.group import CPU, HEAD, ROUTER

# Who labels the nodes → the label, and Ray's name of an accelerator → its value.
# Sources: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus, https://karpenter.sh/docs/concepts/scheduling
NODE_LABELS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "gke": (
        "cloud.google.com/gke-accelerator",
        {
            "T4": "nvidia-tesla-t4",
            "P4": "nvidia-tesla-p4",
            "P100": "nvidia-tesla-p100",
            "V100": "nvidia-tesla-v100",
            "L4": "nvidia-l4",
            "A100-40G": "nvidia-tesla-a100",
            "A100-80G": "nvidia-a100-80gb",
            "H100": "nvidia-h100-80gb",
            "H200": "nvidia-h200-141gb",
            "B200": "nvidia-b200",
        },
    ),
    "karpenter": (
        "karpenter.k8s.aws/instance-gpu-name",
        {name: name.lower() for name in ("T4", "V100", "A10G", "L4", "L40S", "A100", "H100", "H200", "B200")},
    ),
}


@dataclass(frozen=True)
class Selector:
    """A label that nodes must have. `of` is an accelerator, `cpu`, `router` or `head`; None is every worker."""

    of: str | None
    key: str
    value: str


@dataclass(frozen=True)
class Nodes:
    """Which nodes pods may stand on.

    Args:
        labels: who labels nodes by their GPU, a key of `NODE_LABELS`; None is nobody.
        selectors: more labels that nodes must have. They win over `labels`.
        tolerations: taints that workers put up with, beside that of GPU nodes.
    """

    labels: str | None = None
    selectors: tuple[Selector, ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()

    def selector(self, of: str | None) -> dict[str, str]:
        """Labels that the nodes of a pod must have.

        Args:
            of: an accelerator, `cpu`, `router`, `head`, or None for any GPU.

        Raises:
            ConfigError: the accelerator has no label of its own there.
        """
        found = {} if of in (HEAD, CPU, ROUTER) else self._labels_of(of)
        everyone = () if of == HEAD else (None,)
        return found | {selector.key: selector.value for selector in self.selectors if selector.of in (*everyone, of)}

    def _labels_of(self, accelerator: str | None) -> dict[str, str]:
        if self.labels is None or accelerator is None:
            return {}
        key, values = NODE_LABELS[self.labels]
        if accelerator in values:
            return {key: values[accelerator]}
        if any(selector.of == accelerator for selector in self.selectors):
            return {}
        raise ConfigError(
            f"--node-labels {self.labels}: no label is known for {accelerator}; known are {', '.join(values)}.\n"
            f"hint: --node-selector {accelerator}:KEY=VALUE says which nodes have it."
        )


def read_selector(text: str) -> Selector:
    """A selector as it is written on the command line: `KEY=VALUE` or `A10G:KEY=VALUE`.

    Raises:
        ConfigError: it is neither.
    """
    found = re.fullmatch(r"(?:([\w-]+):)?([A-Za-z0-9][\w./-]*)=([\w.-]*)", text)
    if not found:
        raise ConfigError(f"--node-selector: `{text}` must be KEY=VALUE, or ACCELERATOR:KEY=VALUE for its pods alone.")
    return Selector(found[1], found[2], found[3])


def read_toleration(text: str) -> dict[str, Any]:
    """A toleration as `kubectl taint` writes the taint: `KEY=VALUE:EFFECT` or `KEY:EFFECT`.

    Raises:
        ConfigError: it is neither.
    """
    found = re.fullmatch(r"([A-Za-z0-9][\w./-]*)(?:=([\w.-]*))?:(NoSchedule|PreferNoSchedule|NoExecute)", text)
    if not found:
        raise ConfigError(f"--toleration: `{text}` must be KEY=VALUE:EFFECT or KEY:EFFECT, such as sku=gpu:NoSchedule.")
    if found[2] is None:
        return {"key": found[1], "operator": "Exists", "effect": found[3]}
    return {"key": found[1], "operator": "Equal", "value": found[2], "effect": found[3]}
