"""Replace secrets in files by references: tokens and keys in environment variables, passwords in URLs."""

import re
from collections.abc import Iterable
from typing import Any

from rayllm.config.legacy import Changes, Mapping, at, mapped
from rayllm.config.secrets import REFERENCE

# Words in the names of variables that hold secrets.
_SECRET_PARTS = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "KEY", "APIKEY"}
# Pattern of a well-known token → variable that usually holds one.
_TOKENS = {
    r"hf_[A-Za-z0-9]{16,}": "HF_TOKEN",
    r"A(?:KIA|SIA)[0-9A-Z]{16}": "AWS_ACCESS_KEY_ID",
    r"sk-[A-Za-z0-9_-]{20,}": "OPENAI_API_KEY",
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}": "GITHUB_TOKEN",
    r"glpat-[A-Za-z0-9_-]{20,}": "GITLAB_TOKEN",
}
_IN_URL = re.compile(r"(?<=://)([^/\s@:]*:[^/\s@]+)(?=@([^/\s:]+))")
# Where `${env:NAME}` is expanded at deploy time.
_ENVIRONMENTS = (("runtime_env",), ("deployment_config", "ray_actor_options", "runtime_env"))


def refer(config: Mapping, names: Iterable[str]) -> None:
    """Pass variables of the deploying process to a model's processes, where the model does not set the variable."""
    references = {name: f"${{env:{name}}}" for name in names}
    if references:
        environment = config["runtime_env"] = dict(at(config, "runtime_env"))
        environment["env_vars"] = references | at(environment, "env_vars")


def take_secrets(config: Mapping, changes: Changes) -> None:
    """Replace the secrets of a model by references, and refuse secrets where references are not expanded."""
    for path in _ENVIRONMENTS:
        holder, where = at(config, *path[:-1]), ".".join(path)
        if isinstance(holder.get(path[-1]), dict):
            take_from_variables(at(holder, path[-1], "env_vars"), f"{where}.env_vars", changes)
            holder[path[-1]] = _referring(holder[path[-1]], where, changes)
    refuse_secrets(config, "", changes)


def refuse_secrets(value: Any, key: str, changes: Changes) -> None:
    """Refuse what looks like a secret in `value`, which is at the path `key`."""

    def check(text: str, where: str) -> str:
        if secrets_in(text):
            changes.refuse(where, "holds a secret, which does not belong in a file; remove it.")
        return text

    mapped(value, check, key)


def take_from_variables(variables: Mapping, where: str, changes: Changes) -> list[str]:
    """Replace secrets among environment variables by references; returns their names."""
    names = []
    for name, value in variables.items():
        if isinstance(value, str) and value and not REFERENCE.fullmatch(value) and is_secret(name, value):
            variables[name] = f"${{env:{name}}}"
            changes.secret(f"{where}.{name}", name)
            names.append(name)
    return names


def references_in(variables: Mapping) -> list[str]:
    """Names of the variables that only refer to the variable of the same name."""
    return [name for name, value in variables.items() if value == f"${{env:{name}}}"]


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret."""
    return bool(_SECRET_PARTS & set(name.upper().split("_"))) or any(re.fullmatch(shape, value) for shape in _TOKENS)


def secrets_in(text: str) -> list[tuple[str, str]]:
    """The secrets in a text, each with the name of a variable for the secret."""
    in_urls = [match for match in _IN_URL.finditer(text) if "${env:" not in match[1]]
    secrets = [(match[1], re.sub(r"\W", "_", match[2]).upper() + "_CREDENTIALS") for match in in_urls]
    for pattern, name in _TOKENS.items():
        secrets += [(secret, name) for secret in re.findall(pattern, text)]
    return secrets


def _referring(value: Any, key: str, changes: Changes) -> Any:
    def referring(text: str, where: str) -> str:
        for secret, name in secrets_in(text):
            if secret in text:
                text = text.replace(secret, f"${{env:{name}}}")
                changes.secret(where, name)
        return text

    return mapped(value, referring, key)
