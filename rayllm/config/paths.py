"""Resolve relative paths in configuration files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.prompt import tool_templates

# Paths of the keys whose value may be a path.
_PATH_KEYS = (
    ("model_loading_config", "model_source"),
    ("model_loading_config", "tokenizer_source"),
    ("chat_template",),
    ("tool_calling", "plugin"),
    ("tool_calling", "chat_template"),
    ("lora_config", "dynamic_lora_loading_path"),
    ("guided_decoding", "backends_dir"),
)
# The others may also be a hub id or a URI.
_ALWAYS_A_PATH = {
    ("chat_template",),
    ("tool_calling", "plugin"),
    ("tool_calling", "chat_template"),
    ("guided_decoding", "backends_dir"),
}


def find(text: str, folders: tuple[Path, ...], key: str) -> Path:
    """Look up a path, the value of `key`, in each folder in turn.

    Raises:
        ConfigError: it is in none; the message lists the candidates.
    """
    path = Path(text).expanduser()
    candidates = [path] if path.is_absolute() else list(dict.fromkeys((folder / path).resolve() for folder in folders))
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise ConfigError(f"{key}: no such file or folder: {' or '.join(map(str, candidates))}.")


def kept_in(text: str, folders: tuple[Path, ...]) -> str:
    """Look up a file or folder that may not exist yet: as `find`, but then it is in the first of the folders.

    Bucket URIs stay as they are.
    """
    if not text or "://" in text:
        return text
    path = Path(text).expanduser()
    if path.is_absolute():
        return str(path)
    candidates = [(folder / path).resolve() for folder in folders]
    return str(next((candidate for candidate in candidates if candidate.exists()), candidates[0]))


def search_folders(folder: Path | None) -> tuple[Path, ...]:
    """Where the relative paths of a serve config in `folder` are looked up, in order."""
    return tuple(dict.fromkeys((*((folder, folder.parent) if folder else ()), Path.cwd())))


def absolute_router(raw: Any, folders: tuple[Path, ...]) -> Any:
    """A router's raw mapping with absolute paths."""
    if not isinstance(raw, dict):
        return raw
    changes: dict[str, Any] = {}
    for name in ("keys", "usage"):
        if isinstance(path := raw.get(name), str):
            changes[name] = kept_in(path, folders)
    if isinstance(batches := raw.get("batches"), dict) and isinstance(storage := batches.get("storage"), str):
        changes["batches"] = {**batches, "storage": kept_in(storage, folders)}
    if isinstance(hooks := raw.get("hooks"), list):
        changes["hooks"] = [_absolute_hook(hook, folders) for hook in hooks]
    return {**raw, **changes}


def _absolute_hook(hook: Any, folders: tuple[Path, ...]) -> Any:
    if not isinstance(hook, dict) or not isinstance(text := hook.get("callable"), str):
        return hook
    file, colon, name = text.rpartition(":")
    return {**hook, "callable": kept_in(file, folders) + colon + name} if file.endswith(".py") else hook


def absolute(raw: dict[str, Any], folders: tuple[Path, ...], name: str) -> list[str]:
    """Make the relative paths of a model's raw mapping absolute, in place; returns the faults."""
    faults = []
    for keys, text, put in _texts(raw):
        if keys[-1] == "chat_template" and ("{" in text or "\n" in text or text in tool_templates.names()):
            continue
        # An absolute path may only exist on the cluster's nodes.
        if re.match(r"\.|~", text) or (keys in _ALWAYS_A_PATH and not text.startswith("/")):
            try:
                put(str(find(text, folders, f"{name}: {'.'.join(keys)}")))
            except ConfigError as error:
                faults.append(error.message)
    return faults


def _texts(raw: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str, Callable[[str], None]]]:
    for keys in _PATH_KEYS:
        holder: Any = raw
        for key in keys[:-1]:
            holder = holder.get(key) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            continue
        value = holder.get(keys[-1])
        if isinstance(value, str):
            yield keys, value, lambda text, holder=holder, key=keys[-1]: holder.__setitem__(key, text)  # type: ignore[misc]
        elif isinstance(value, dict) and isinstance(value.get("path"), str):
            yield (*keys, "path"), value["path"], lambda text, value=value: value.__setitem__("path", text)  # type: ignore[misc]
    yield from _module_paths(raw.get("lora_config"))


def _module_paths(lora: Any) -> Iterator[tuple[tuple[str, ...], str, Callable[[str], None]]]:
    """Paths in `lora_config.lora_modules`, in both of its forms."""
    modules = lora.get("lora_modules") if isinstance(lora, dict) else None
    if not isinstance(modules, list):
        return
    for index, module in enumerate(modules):
        keys = ("lora_config", "lora_modules", str(index))
        if isinstance(module, str) and "=" in module:
            name, _, path = module.partition("=")
            yield keys, path, lambda text, i=index, name=name: modules.__setitem__(i, f"{name}={text}")  # type: ignore[misc]
        elif isinstance(module, dict) and isinstance(module.get("path"), str):
            yield (*keys, "path"), module["path"], lambda text, module=module: module.__setitem__("path", text)  # type: ignore[misc]
