"""Resolve relative paths in configuration files, and read the chat templates that they name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayllm.config.legacy import at
from rayllm.core.errors import ConfigError
from rayllm.prompt import tool_templates

# Path of a key whose value may be a path → whether it always is: some values may also be a hub id or a URI.
_PATH_KEYS: dict[tuple[str, ...], bool] = {
    ("model_loading_config", "model_source"): False,
    ("model_loading_config", "tokenizer_source"): False,
    ("chat_template",): True,
    ("tool_calling", "plugin"): True,
    ("tool_calling", "chat_template"): True,
    ("lora_config", "dynamic_lora_loading_path"): False,
    ("guided_decoding", "backends_dir"): True,
}


def candidates_of(text: str, folders: tuple[Path, ...]) -> list[Path]:
    """Where a path may be, in order: itself if absolute, else in each of the folders."""
    path = Path(text).expanduser()
    return [path] if path.is_absolute() else list(dict.fromkeys((folder / path).resolve() for folder in folders))


def find(text: str, folders: tuple[Path, ...], key: str) -> Path:
    """Look up a path, the value of `key`, in each folder in turn; the ConfigError without one lists the candidates."""
    candidates = candidates_of(text, folders)
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise ConfigError(f"{key}: no such file or folder: {' or '.join(map(str, candidates))}.")


def kept_in(text: str, folders: tuple[Path, ...]) -> str:
    """Look up a path that may not exist yet, by default in the first of the folders. Bucket URIs stay as they are."""
    if not text or "://" in text:
        return text
    candidates = candidates_of(text, folders)
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
    for keys, holder in _places(raw):
        text, before, equals = holder[keys[-1]], "", ""
        if isinstance(holder, list):
            # vLLM's short form of an adapter.
            before, equals, text = text.partition("=")
        if keys[-1] == "chat_template" and ("{" in text or "\n" in text or text in tool_templates.names()):
            continue
        # An absolute path may only exist on the cluster's nodes.
        if re.match(r"\.|~", text) or (_PATH_KEYS.get(keys) and not text.startswith("/")):
            try:
                holder[keys[-1]] = before + equals + str(find(text, folders, f"{name}: {'.'.join(map(str, keys))}"))
            except ConfigError as error:
                faults.append(error.message)
    return faults


def _places(raw: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every text that may be a path: its keys, and the mapping or list that has the text at the last key."""
    modules = at(raw, "lora_config").get("lora_modules")
    places: list[tuple[tuple[Any, ...], Any]] = [(keys, at(raw, *keys[:-1])) for keys in _PATH_KEYS]
    if isinstance(modules, list):
        places += [(("lora_config", "lora_modules", index), modules) for index in range(len(modules))]
    for keys, holder in places:
        value = holder[keys[-1]] if isinstance(holder, list) else holder.get(keys[-1])
        if isinstance(value, dict):
            keys, holder, value = (*keys, "path"), value, value.get("path")
        if isinstance(value, str):
            yield keys, holder


def read_template(template: str | None) -> str | None:
    """Read a chat template: text, which has braces or line breaks, the name of a bundled one, or a path.

    Raises ConfigError if the file cannot be read.
    """
    if template is None or "{" in template or "\n" in template:
        return template
    if (bundled := tool_templates.read(template)) is not None:
        return bundled
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template: {template} cannot be read: {error.strerror}.") from None
