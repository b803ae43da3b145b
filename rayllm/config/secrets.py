"""Expand `${env:NAME}` references to environment variables, and find references that nothing expands."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rayllm.config.legacy import mapped
from rayllm.core.errors import ConfigError

REFERENCE = re.compile(r"\$\{env:([A-Za-z_]\w*)\}")
_ANY_REFERENCE = re.compile(r"\$\{(env:)?([A-Za-z_]\w*)((?::?[-=?+][^}]*)?)\}")
_EXPANDED = ("runtime_env", "admin_keys")
# Keys of texts in which `${…}` may be meant, and of paths with variables of the node.
_TEXTS = {"chat_template", "chat_template_kwargs", "generation_config", "prompt_format", "destination_path"}


def expand(value: Any, environment: Mapping[str, str], where: str) -> Any:
    """Replace every `${env:NAME}` in the strings of a nested value, whose key is `where`.

    Raises ConfigError if a variable is not set.
    """

    def read(name: str, where: str) -> str:
        if name not in environment:
            raise ConfigError(f"{where}: the environment variable `{name}` is not set; export it before you deploy.")
        return environment[name]

    return mapped(value, lambda text, at: REFERENCE.sub(lambda match: read(match[1], at), text), where)


def unexpanded(value: Any, key: str, expanded_in: str = "") -> Iterator[str]:
    """One fault for each reference that nothing expands in a nested value at the path `key`.

    `expanded_in` is the parent whose references are expanded, if any. In a `runtime_env`, Ray expands `${NAME}`.
    """
    if isinstance(value, str):
        for env, name, default in _ANY_REFERENCE.findall(value):
            if default or not expanded_in or not (env or expanded_in == "runtime_env"):
                how = f"write `${{env:{name}}}`, which has no default, and export {name} before you deploy"
                elsewhere = "write the value, or fill in the file first, as `envsubst` does"
                yield f"{key}: `${{{env}{name}{default}}}` is not expanded here; {how if expanded_in else elsewhere}."
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if name not in _TEXTS:
            within = name if name in _EXPANDED else expanded_in
            yield from unexpanded(item, f"{key}.{name}".lstrip("."), within)
