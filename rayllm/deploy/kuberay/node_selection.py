"""Selects the nodes for pods: labels and tolerations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.deploy.kuberay.worker_group import CPU, HEAD, ROUTER

# Cloud or autoscaler → its label for GPU nodes, and the label's value for each of Ray's accelerator types.
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
class NodeSelector:
    """A label that nodes must have for pods of a kind: an accelerator, `cpu`, `router`, `head`; None is any worker."""

    kind: str | None
    key: str
    value: str


@dataclass(frozen=True)
class NodeSelection:
    """Constraints on the nodes for pods.

    Args:
        labels: key of `NODE_LABELS`; None adds no label by accelerator.
        selectors: additional labels; they override `labels`.
        tolerations: tolerations of workers, in addition to the one for GPU nodes.
    """

    labels: str | None = None
    selectors: tuple[NodeSelector, ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()

    def node_selector(self, kind: str | None) -> dict[str, str]:
        """The `nodeSelector` of a pod.

        Args:
            kind: an accelerator, `cpu`, `router`, `head`, or None for any GPU.

        Raises:
            ConfigError: there is no label for the accelerator.
        """
        labels = {} if kind in (HEAD, CPU, ROUTER) else self._accelerator_label(kind)
        kinds = (kind,) if kind == HEAD else (None, kind)
        return labels | {selector.key: selector.value for selector in self.selectors if selector.kind in kinds}

    def _accelerator_label(self, accelerator: str | None) -> dict[str, str]:
        if self.labels is None or accelerator is None:
            return {}
        key, values = NODE_LABELS[self.labels]
        if accelerator in values:
            return {key: values[accelerator]}
        if any(selector.kind == accelerator for selector in self.selectors):
            return {}
        raise ConfigError(
            f"--node-labels {self.labels}: no label is known for {accelerator}; known are {', '.join(values)}.\n"
            f"hint: --node-selector {accelerator}:KEY=VALUE says which nodes have it."
        )


def parse_selector(text: str) -> NodeSelector:
    """Parse `--node-selector`: `KEY=VALUE` or `A10G:KEY=VALUE`.

    Raises:
        ConfigError: it is neither.
    """
    match = re.fullmatch(r"(?:([\w-]+):)?([A-Za-z0-9][\w./-]*)=([\w.-]*)", text)
    if not match:
        raise ConfigError(f"--node-selector: `{text}` must be KEY=VALUE, or ACCELERATOR:KEY=VALUE for its pods alone.")
    return NodeSelector(match[1], match[2], match[3])


def parse_toleration(text: str) -> dict[str, Any]:
    """Parse `--toleration`, written like a taint of `kubectl taint`: `KEY=VALUE:EFFECT` or `KEY:EFFECT`.

    Raises:
        ConfigError: it is neither.
    """
    match = re.fullmatch(r"([A-Za-z0-9][\w./-]*)(?:=([\w.-]*))?:(NoSchedule|PreferNoSchedule|NoExecute)", text)
    if not match:
        raise ConfigError(f"--toleration: `{text}` must be KEY=VALUE:EFFECT or KEY:EFFECT, such as sku=gpu:NoSchedule.")
    if match[2] is None:
        return {"key": match[1], "operator": "Exists", "effect": match[3]}
    return {"key": match[1], "operator": "Equal", "value": match[2], "effect": match[3]}
