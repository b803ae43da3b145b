"""Move or drop arguments in `engine_kwargs` that have another key now, or none, and rewrite sampling values."""

from typing import Any

from rayllm.config.engine_arguments import OWNED, known_arguments, settable_arguments, vllm_names
from rayllm.config.faults import did_you_mean
from rayllm.config.legacy import Changes, Mapping, at, tables
from rayllm.deploy.conversion.keys.secrets import refer

MOVED, DROPPED = tables()["moved_arguments"], tables()["dropped_arguments"]
"""Arguments with a key that replaces them, and without: the key, or why there is none."""
_TASKS = {"embedding": "embed", **{name: name for name in ("generate", "embed", "score", "classify")}}
_RENAMED, _STOPS = tables()["sampling"], tables()["stops"]


def carry_engine_arguments(config: Mapping, changes: Changes) -> None:
    """Move or drop what does not belong in `engine_kwargs`."""
    arguments = config.get("engine_kwargs")
    if not isinstance(arguments, dict):
        return
    for name in list(arguments):
        key = f"engine_kwargs.{name}"
        if arguments[name] is None:
            del arguments[name]
            changes.dropped(key, "null leaves it to vLLM")
        elif name in MOVED:
            _move(config, name, arguments.pop(name), changes)
        elif name in DROPPED:
            del arguments[name]
            changes.dropped(key, DROPPED[name])
        elif name == "hf_token":
            # A token, or true for the one stored by the hub's client.
            if isinstance(arguments.pop(name), str):
                refer(config, ["HF_TOKEN"])
                changes.secret(key, "HF_TOKEN")
            else:
                changes.dropped(key, "the hub's client finds its stored token")
        elif name not in known_arguments():
            del arguments[name]
            hint = did_you_mean(name, settable_arguments()).rstrip("?")
            changes.dropped(key, f"the current vLLM has no such argument{hint}")
        elif name not in settable_arguments() and name not in OWNED:
            del arguments[name]
            changes.dropped(key, "it is an option of vLLM's own server; the router and Ray Serve answer clients")
    _tool_choice(config, changes)


def _move(config: Mapping, name: str, value: Any, changes: Changes) -> None:
    path, key = MOVED[name].split("."), f"engine_kwargs.{name}"
    if name == "task":
        value = _TASKS.get(value)
        if value is None:
            changes.dropped(key, "vLLM detects the model's task")
            return
    holder = config
    for step in path[:-1]:
        # The value may be null, or of a wrong type, which validation reports.
        holder[step] = holder.get(step) or {}
        holder = holder[step]
    if not isinstance(holder, dict):
        return
    if path[-1] in holder and holder[path[-1]] is not None:
        changes.dropped(key, f"`{MOVED[name]}` is given too, and counts")
        return
    holder[path[-1]] = _modules(value, changes) if name == "lora_modules" else value
    changes.renamed(key, MOVED[name])


def _modules(value: Any, changes: Changes) -> Any:
    """Adapters with only their name, in which `--` replaces a slash, and path."""
    modules = []
    for each in value if isinstance(value, list) else ():
        is_short = isinstance(each, str)
        name, path = each.split("=", 1) if is_short and "=" in each else (at(each).get("name"), at(each).get("path"))
        if isinstance(name, str) and "/" in name:
            short = name.replace("/", "--")
            changes.rewritten("engine_kwargs.lora_modules", f"has `{short}` for `{name}`: clients send that")
            name = short
        modules.append(f"{name}={path}" if is_short else {"name": name, "path": path})
    return modules if isinstance(value, list) else value


def _tool_choice(config: Mapping, changes: Changes) -> None:
    """Keep vLLM's default: without `enable_auto_tool_choice` models may not choose tools, in RayLLM they may."""
    tools = config.get("tool_calling")
    if isinstance(tools, dict) and "auto" not in tools:
        tools["auto"] = False
        changes.added("tool_calling.auto", "is written as false, vLLM's default without `enable_auto_tool_choice`")


def carry_sampling(config: Mapping, changes: Changes) -> None:
    """Rewrite `generation_config.generate_kwargs`."""
    generation = at(config, "generation_config")
    values, where = at(generation, "generate_kwargs"), "generation_config.generate_kwargs"
    for name in list(values):
        key, value = f"{where}.{name}", values[name]
        if value is None:
            del values[name]
            changes.dropped(key, "null leaves it to vLLM")
        elif name in _RENAMED and _RENAMED[name] not in values:
            values[_RENAMED[name]] = values.pop(name)
            changes.renamed(key, f"{where}.{_RENAMED[name]}")
        elif name in _STOPS:
            _stop(generation, _STOPS[name], values.pop(name))
            changes.renamed(key, f"generation_config.{_STOPS[name]}")
        elif name not in (fields := vllm_names()["request"]):
            del values[name]
            why = f"a request has no such field{did_you_mean(name, fields).rstrip('?')}"
            changes.dropped(key, "`temperature: 0` is greedy, anything else samples" if name == "do_sample" else why)


def _stop(generation: Mapping, key: str, value: object) -> None:
    stops, more = generation.get(key) or [], value if isinstance(value, list) else [value]
    generation[key] = [*stops, *(stop for stop in more if stop not in stops)]
