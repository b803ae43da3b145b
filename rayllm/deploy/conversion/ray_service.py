"""Read KubeRay's RayServices: the serve config, and what of the cluster `rayllm build --kuberay` has options for.

Source: https://docs.ray.io/en/master/kuberay/references/api.html (KubeRay 1.7.0)
"""

import math
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

from rayllm.config.legacy import Changes, Mapping, at
from rayllm.config.yaml import parse_yaml
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion.keys.secrets import is_secret, secrets_in
from rayllm.deploy.kuberay.options import node_labels

KIND = "RayService"
"""`kind` of its manifests."""
CONFIG = "spec.serveConfigV2"
"""The key of its serve config, a text."""
_COMMAND = "rayllm build --kuberay"
_NO_OPTION = f"`{_COMMAND}` has no option for it, and plans the pods from the models"


def read_service(file: Path, manifest: Mapping, prefix: str, changes: Changes) -> Mapping:
    """The parsed serve config of a manifest at the path `prefix`; other keys are recorded as options or as dropped."""
    text, name = at(manifest, "spec").get("serveConfigV2"), f"{file}: {prefix}{CONFIG}"
    config = parse_yaml(text, name) if isinstance(text, str) else None
    if not isinstance(config, dict):
        raise ConfigError(f"{name}: must be the text of a serve config, with `applications`.")
    _record(manifest, _RULES, prefix, changes)
    return config


def _record(value: Any, rules: Mapping, where: str, changes: Changes) -> None:
    """Record the keys of a mapping, or the indexes of a list, by a rule for each key, or by one for all (`*`).

    A rule is an option, a reason why there is none, a function of the value that returns either, or further rules.
    """
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        key, rule = f"{where}{name}", rules.get(str(name), rules.get("*", _NO_OPTION))
        if isinstance(rule, dict) and isinstance(item, dict | list):
            _record(item, rule, f"{key}.", changes)
        elif item is not None and rule is not None:
            text = rule(item) if callable(rule) else _option(rule, item) if str(rule).startswith("--") else rule
            if str(text).startswith("--"):
                changes.renamed(key, f"{_COMMAND} {text}")
            else:
                changes.dropped(key, text if text and isinstance(text, str) else _NO_OPTION)


def _option(name: str, value: object) -> str:
    return f"{name} {shlex.quote(str(value))}" if isinstance(value, str | int) else ""


def _image(image: object) -> str:
    is_ours = isinstance(image, str) and not re.match(r"(docker\.io/)?(rayproject|anyscale)/", image)
    return _option("--image", image) if is_ours else f"it has no RayLLM; name one that has: `{_COMMAND} --image`"


def _variable(variable: object) -> str:
    name, secret = at(variable).get("name"), at(variable, "valueFrom", "secretKeyRef")
    value = None if (found := at(variable).get("value")) is None else str(found)
    if secret:
        is_whole = secret.get("key") == name
        why = f"`--env-secret` takes all of a Secret: give `{secret.get('name')}` the key `{name}`"
        return _option("--env-secret", secret.get("name")) if is_whole else why
    if value is not None and (is_secret(str(name), value) or secrets_in(value)):
        return f"it holds a secret: put it into a Secret, and name that with `{_COMMAND} --env-secret`"
    return _option("--env", f"{name}={value}") if value is not None else ""


def _labels(of: str, labels: object) -> str:
    schemes = {scheme["label"]: name for name, scheme in node_labels().items()}
    known = [_option("--node-labels", schemes[key]) for key in at(labels) if key in schemes]
    return " ".join(known or [_option("--node-selector", f"{of}{key}={value}") for key, value in at(labels).items()])


def _tolerations(tolerations: object) -> str:
    options = []
    for each in tolerations if isinstance(tolerations, list) else ():
        value = f"={at(each)['value']}" if at(each).get("value") else ""
        if {"key", "effect"} <= at(each).keys():
            options.append(_option("--toleration", f"{each['key']}{value}:{each['effect']}"))
    return " ".join(options)


def _volumes(volumes: object) -> str:
    for each in volumes if isinstance(volumes, list) else ():
        if claim := at(each, "persistentVolumeClaim").get("claimName"):
            return _option("--model-cache", f"pvc:{claim}")
        if path := at(each, "hostPath").get("path"):
            return _option("--model-cache", f"hostPath:{path}")
    return ""


def _resources(of: str, resources: object) -> str:
    """CPUs and memory, of workers per GPU."""
    amounts = {str(name): amount for name, amount in (at(resources, "limits") | at(resources, "requests")).items()}
    device = next((name for name in amounts if name.endswith("gpu") or "/mig-" in name), None)
    gpus = max(1, math.ceil(_number(amounts.get(device or ""))))
    options = [_option("--gpus-per-node", gpus)] if device else []
    if device not in (None, "nvidia.com/gpu"):
        options.append(_option("--gpu-resource", device))
    if cpus := _number(amounts.get("cpu")):
        options.append(_option(f"--{of}cpus", math.ceil(cpus / gpus)))
    if memory := _number(amounts.get("memory")):
        unit = re.sub(r"[\d.]", "", str(amounts["memory"]))
        options.append(_option(f"--{of}memory", f"{math.ceil(memory / gpus)}{unit}"))
    return " ".join(options)


def _number(amount: object) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)\w*", str(amount))
    return float(match[1]) / (1000 if match[2] else 1) if match else 0


def _template(of: str) -> Mapping:
    """Rules of a group's pods; `of` is "head", or empty for workers."""
    container = {
        "name": None,
        "image": _image,
        "env": {"*": _variable},
        "envFrom": {"*": lambda each: _option("--env-secret", at(each, "secretRef").get("name"))},
        "resources": partial(_resources, f"{of}-" if of else ""),
    }
    pod = {
        "containers": {"0": container},
        "serviceAccountName": "--service-account",
        "imagePullSecrets": {"0": {"name": "--image-pull-secret"}},
        "nodeSelector": partial(_labels, f"{of}:" if of else ""),
        "tolerations": _NO_OPTION if of else _tolerations,
        "volumes": _volumes,
    }
    return {"spec": pod}


_SECRET = {"secretKeyRef": lambda of: _option("--redis-password", f"{at(of).get('name')}:{at(of).get('key')}")}
_REDIS = {"redisAddress": "--redis", "redisPassword": {"valueFrom": _SECRET}}
_CLUSTER = {
    "gcsFaultToleranceOptions": _REDIS,
    "headGroupSpec": {"template": _template("head")},
    "workerGroupSpecs": {"*": {"template": _template("")}},
}
_RULES = {
    **dict.fromkeys(("apiVersion", "kind", "status")),
    "metadata": {"name": "--name", "namespace": "--namespace"},
    "spec": {
        "serveConfigV2": None,
        "upgradeStrategy": {"type": "--upgrade", "clusterUpgradeOptions": {"gatewayClassName": "--gateway-class"}},
        "rayClusterConfig": _CLUSTER,
    },
}
