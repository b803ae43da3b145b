"""Arguments of `vllm serve`, translated to the keys of a model's file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayllm.config.engine_arguments import known_arguments, settable_arguments
from rayllm.config.faults import did_you_mean
from rayllm.config.vllm_versions import other_version
from rayllm.errors import ConfigError

# Short form of vLLM's → argument. Source: vLLM 0.29, `EngineArgs.add_cli_args`.
_SHORT = {"-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-cc": "compilation_config"}
_SHORT |= {"-dp": "data_parallel_size", "-q": "quantization", "-ep": "enable_expert_parallel"}
# The same arguments under the names of vLLM's command line.
_RENAMED = {"tool_call_parser_plugin": "tool_parser_plugin"}
# Argument → path of the key of a model's file that replaces it.
_KEYS = {
    "tool_call_parser": ("tool_calling", "parser"),
    "enable_auto_tool_choice": ("tool_calling", "auto"),
    "tool_parser_plugin": ("tool_calling", "plugin"),
    "reasoning_parser": ("reasoning_parser",),
    "chat_template": ("chat_template",),
    "default_chat_template_kwargs": ("chat_template_kwargs",),
    "tokenizer": ("model_loading_config", "tokenizer_source"),
    "revision": ("model_loading_config", "revision"),
    "max_model_len": ("max_request_context_length",),
    "tensor_parallel_size": ("tensor_parallelism", "degree"),
    "pipeline_parallel_size": ("pipeline_parallelism", "degree"),
}
# Arguments that RayLLM or the router decides → why.
_LEFT_OUT = {
    "served_model_name": "clients use `model_id`",
    "distributed_executor_backend": "it follows from where the workers are placed",
}
_NUMBERS = ("max_model_len", "tensor_parallel_size", "pipeline_parallel_size")


@dataclass
class FileKeys:
    """Keys of a model's file.

    `keys` are those at the top, among them `engine_kwargs`; `variables` are environment variables of the replicas;
    `left_out` has one sentence for each argument that became no key.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    @property
    def engine(self) -> dict[str, Any]:
        """The engine's arguments."""
        engine: dict[str, Any] = self.keys.get("engine_kwargs", {})
        return engine

    def add(self, where: str, flags: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Add arguments and environment variables; a later value replaces an earlier one.

        Args:
            where: the recipe's key that has them, for errors.
            flags: as on the command line of `vllm serve`.
            variables: environment variables.

        Raises:
            ConfigError: the installed vLLM has no such argument, or replicas cannot have it.
        """
        for name, steps, value in _parsed(where, flags):
            if name in _LEFT_OUT or (name not in settable_arguments() and name not in _KEYS):
                reason = _LEFT_OUT.get(name, "the router and Ray Serve answer clients")
                self.left_out.append(f"{where}: `{_flag(name)}` is left out: {reason}")
                continue
            if name in _NUMBERS and not isinstance(value, int):
                if value == "auto":
                    self.left_out.append(f"{where}: `{_flag(name)} auto` is left out: it is computed")
                    continue
                raise ConfigError(f"{where}: `{_flag(name)}` must be a whole number, not {value!r}.")
            path = (*_KEYS.get(name, ("engine_kwargs", name)), *steps)
            holder = self.keys
            for step in path[:-1]:
                inner = holder.get(step)
                holder[step] = holder = dict(inner) if isinstance(inner, dict) else {}
            holder[path[-1]] = value
        for variable, value in (variables or {}).items():
            if value.startswith("$"):
                self.left_out.append(
                    f"{where}: the environment variable {variable} is left out: set it to your {value}"
                )
            else:
                self.variables[variable] = value

    def pop(self, *path: str) -> Any:
        """Take a key out; None if it is not there."""
        holder: Any = self.keys
        for step in path[:-1]:
            holder = holder.get(step, {})
        value = holder.pop(path[-1], None)
        if len(path) > 1 and not holder:
            self.keys.pop(path[0], None)
        return value


def _parsed(where: str, flags: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Argument, path inside its value, and value.

    Raises:
        ConfigError: the installed vLLM has no such argument.
    """
    words = [word for flag in flags for word in (flag.split(maxsplit=1) if flag.startswith("-") else [flag])]
    while words:
        flag = words.pop(0)
        if not _is_flag(flag):
            raise ConfigError(f"{where}: `{flag}` follows no argument of `vllm serve` such as `--max-num-seqs`.")
        flag, has_value, text = flag.partition("=")
        if not has_value and words and not _is_flag(words[0]):
            has_value, text = "=", words.pop(0)
        head, *steps = flag.split(".")
        name, value = _argument(where, head), _value(text) if has_value else True
        if name.startswith("no_") and name not in known_arguments():
            name, value = name.removeprefix("no_"), False
        if name not in known_arguments():
            if reason := other_version("engine", name) or other_version("server", name):
                raise ConfigError(f"{where}: `{flag}` {reason}.")
            hint = did_you_mean(name, known_arguments()).replace("_", "-") or "."
            raise ConfigError(f"{where}: the installed vLLM has no argument `{flag}`{hint}")
        if name == "data_parallel_size" and value != 1:
            raise ConfigError(f"{where}: `{flag}` is not supported: replicas are what RayLLM multiplies; leave it out.")
        yield name, tuple(steps), value


def _argument(where: str, head: str) -> str:
    if head in _SHORT:
        return _SHORT[head]
    if not head.startswith("--"):
        raise ConfigError(f"{where}: `{head}` is not known here; write the long form of the argument.")
    name = head.removeprefix("--").replace("-", "_")
    return _RENAMED.get(name, name)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _is_number(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _value(text: str) -> Any:
    """A number, a truth value or JSON, else the text itself."""
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
