"""What a manifest has beside the models: images, sizes of pods, their cache, and their nodes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rayllm.config.yaml import read_yaml
from rayllm.core.data_files import read_data
from rayllm.core.errors import ConfigError
from rayllm.deploy.kuberay.worker_group import CPU, HEAD, ROUTER, WorkerGroup

MOUNT = "/cache"
"""Mount path of the cache in every pod."""

# CPUs and memory. The smallest GPU machines of clouds have 4 CPUs and 16 GiB, part of which the system uses.
_GPU_POD = (3, "12Gi")
_CPU_POD = (4, "8Gi")
_ROUTER_POD = (2, "4Gi")
# KubeRay appends up to 16 characters, and Kubernetes allows 63.
_MAX_NAME = 47

# Variables that KubeRay refuses, and what to use instead.
_NOT_VARIABLES = {
    "RAY_REDIS_ADDRESS": "use --redis",
    "REDIS_USERNAME": "give gcsFaultToleranceOptions a redisUsername with --patch",
    "RAY_enable_autoscaler_v2": "a cluster whose models scale has that autoscaler",
}

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class NodeSelector:
    """A label that nodes must have for pods of a kind: an accelerator, `cpu`, `router`, `head`; None is any worker."""

    kind: str | None
    key: str
    value: str


@dataclass(frozen=True)
class ManifestOptions:
    """Options of the Ray cluster and its pods: those of `rayllm build --kuberay`.

    Attributes:
        cpus: CPUs per GPU of a worker, or per worker without GPU; None is what the smallest machines have.
        memory: memory, as for `cpus`.
        routers: pods for routers only; None is two if other pods scale, else none.
        cache: source of the volume for weights and adapters.
        runtime_class: RuntimeClass of pods with GPUs, where NVIDIA's is not the default.
        worker_resources: other resources of each pod with GPUs, such as `rdma/ib: 1`.
        patch: changes to the RayService, as a JSON merge patch (RFC 7386).
        node_labels: a scheme in data/node_labels.yaml, whose labels `node_selectors` override.
        tolerations: tolerations beside the one for GPU nodes.
        service_account: account of the pods, which is created if there are `account_annotations`.
        redis: address of the store for the state of Ray's GCS.
        redis_password: a Secret and its key.
    """

    image: str
    name: str = "rayllm"
    namespace: str | None = None
    gpu_resource: str = "nvidia.com/gpu"
    gpus_per_node: int = 8
    cpus: int | None = None
    memory: str | None = None
    head_cpus: int = 2
    head_memory: str = "8Gi"
    routers: int | None = None
    cache: Mapping[str, Any] = field(default_factory=lambda: {"emptyDir": {}})
    runtime_class: str | None = None
    worker_resources: Mapping[str, str] = field(default_factory=dict)
    patch: Mapping[str, Any] = field(default_factory=dict)
    node_labels: str | None = None
    node_selectors: tuple[NodeSelector, ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_secrets: tuple[str, ...] = ()
    pull_secret: str | None = None
    service_account: str | None = None
    account_annotations: Mapping[str, str] = field(default_factory=dict)
    upgrade: Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"] = "NewCluster"
    gateway_class: str | None = None
    redis: str | None = None
    redis_password: tuple[str, str] | None = None

    def validate(self) -> None:
        """Raise a ConfigError for options that KubeRay would refuse, or that would have no effect."""
        if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", self.name) or len(self.name) > _MAX_NAME:
            raise ConfigError(
                f"--name: `{self.name}` must be small letters, digits and `-`, at most {_MAX_NAME} of them, and "
                "begin with a letter."
            )
        _quantity(self.head_memory, "--head-memory")
        if (self.upgrade == "NewClusterWithIncrementalUpgrade") != bool(self.gateway_class):
            raise ConfigError("--gateway-class and --upgrade NewClusterWithIncrementalUpgrade need each other.")
        if self.account_annotations and not self.service_account:
            raise ConfigError("--service-account-annotation: needs --service-account, the name of the account.")
        if self.redis_password and not self.redis:
            raise ConfigError("--redis-password: needs --redis, the address.")
        for name, amount in self.worker_resources.items():
            if name in ("cpu", "memory", self.gpu_resource):
                raise ConfigError(f"--worker-resource {name}: use --cpus, --memory, or the model's parallelism.")
            _quantity(amount, f"--worker-resource {name}")
        refused = {**_NOT_VARIABLES, **({"REDIS_PASSWORD": "use --redis-password"} if self.redis else {})}
        for name in self.env:
            if name in refused:
                raise ConfigError(f"--env {name}: KubeRay refuses it; {refused[name]}.")

    def cpus_of(self, group: WorkerGroup) -> int:
        """CPUs per pod of the group."""
        if group.kind == ROUTER:
            return _ROUTER_POD[0]
        per_gpu = self.cpus or (_GPU_POD if group.gpus else _CPU_POD)[0]
        return max(group.cpus, per_gpu * max(1, group.gpus))

    def memory_of(self, group: WorkerGroup) -> str:
        """Memory per pod of the group."""
        if group.kind == ROUTER:
            return _ROUTER_POD[1]
        per_gpu = self.memory or (_GPU_POD if group.gpus else _CPU_POD)[1]
        number, unit = _quantity(per_gpu, "--memory")
        return f"{number * max(1, group.gpus)}{unit}"

    def node_selector(self, kind: str | None) -> dict[str, dict[str, str]]:
        """The `nodeSelector`, if any, of pods for an accelerator (None: any), `cpu`, `router` or `head`.

        Raises ConfigError if no label is known for the accelerator.
        """
        labels = {} if kind in (HEAD, CPU, ROUTER) else self._accelerator_label(kind)
        kinds = (kind,) if kind == HEAD else (None, kind)
        labels |= {selector.key: selector.value for selector in self.node_selectors if selector.kind in kinds}
        return {"nodeSelector": labels} if labels else {}

    def _accelerator_label(self, accelerator: str | None) -> dict[str, str]:
        if self.node_labels is None or accelerator is None:
            return {}
        scheme = node_labels()[self.node_labels]
        key, values = scheme["label"], scheme["values"]
        if accelerator in values:
            return {key: values[accelerator]}
        if any(selector.kind == accelerator for selector in self.node_selectors):
            return {}
        raise ConfigError(
            f"--node-labels {self.node_labels}: no label is known for {accelerator}; known are {', '.join(values)}.\n"
            f"hint: --node-selector {accelerator}:KEY=VALUE says which nodes have it."
        )


def node_labels() -> dict[str, Any]:
    """Schemes of labels for GPU nodes: each with its `label`, and `values` of that by accelerator type."""
    schemes: dict[str, Any] = read_data("rayllm.deploy.kuberay", "node_labels.yaml")
    return schemes


def memory_bytes(amount: str) -> int:
    """The bytes of an amount of memory such as `12Gi`."""
    number, unit = _quantity(amount, "--memory")
    return number * _UNITS[unit]


def _quantity(text: str, option: str) -> tuple[int, str]:
    """Parse an amount of memory into number and unit; raises ConfigError, which names the option."""
    match = re.fullmatch(rf"([1-9]\d*)({'|'.join(_UNITS)})", text)
    if not match:
        raise ConfigError(f"{option}: `{text}` must be an amount such as 12Gi or 1.")
    return int(match[1]), match[2]


def parse_cache_volume(text: str) -> dict[str, Any]:
    """Parse `--model-cache`: `emptyDir`, `emptyDir:200Gi`, `hostPath:/path` or `pvc:claim`; raises ConfigError.

    An `emptyDir` is deleted with its pod, a `hostPath` stays on the node for later pods, a `pvc` is one claim for all.
    """
    kind, _, value = text.partition(":")
    if kind == "emptyDir":
        if value:
            _quantity(value, "--model-cache")
        return {"emptyDir": {"sizeLimit": value} if value else {}}
    if kind == "hostPath" and value.startswith("/") and ".." not in value.split("/"):
        return {"hostPath": {"path": value, "type": "DirectoryOrCreate"}}
    if kind == "pvc" and value:
        return {"persistentVolumeClaim": {"claimName": value}}
    raise ConfigError(f"--model-cache: `{text}` must be emptyDir, emptyDir:200Gi, hostPath:/folder or pvc:CLAIM.")


def read_patch(path: str) -> dict[str, Any]:
    """Read the file of `--patch`, in YAML or JSON; raises ConfigError."""
    patch = read_yaml(Path(path))
    if not isinstance(patch, dict):
        raise ConfigError(f"--patch: {path} must hold a mapping, with those keys of the RayService that change.")
    return patch


def parse_selector(text: str) -> NodeSelector:
    """Parse `--node-selector`, `KEY=VALUE` or `A10G:KEY=VALUE`; raises ConfigError."""
    match = re.fullmatch(r"(?:([\w-]+):)?([A-Za-z0-9][\w./-]*)=([\w.-]*)", text)
    if not match:
        raise ConfigError(f"--node-selector: `{text}` must be KEY=VALUE, or ACCELERATOR:KEY=VALUE for its pods alone.")
    return NodeSelector(match[1], match[2], match[3])


def parse_toleration(text: str) -> dict[str, Any]:
    """Parse `--toleration`, written like a taint of `kubectl taint`: `KEY=VALUE:EFFECT` or `KEY:EFFECT`."""
    match = re.fullmatch(r"([A-Za-z0-9][\w./-]*)(?:=([\w.-]*))?:(NoSchedule|PreferNoSchedule|NoExecute)", text)
    if not match:
        raise ConfigError(f"--toleration: `{text}` must be KEY=VALUE:EFFECT or KEY:EFFECT, such as sku=gpu:NoSchedule.")
    if match[2] is None:
        return {"key": match[1], "operator": "Exists", "effect": match[3]}
    return {"key": match[1], "operator": "Equal", "value": match[2], "effect": match[3]}
