"""Load files and mappings into an AppConfig.

read (YAML) → upgrade (older spellings) → resolve (paths) → validate (schema). Faults of all files are collected.
"""

import glob
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rayllm.config.app import AppConfig, RouterConfig
from rayllm.config.faults import config_error, did_you_mean, validating
from rayllm.config.legacy import Changes, refuse_removed_application, refuse_removed_model, upgrade
from rayllm.config.model import GenerationConfig, ModelConfig
from rayllm.config.paths import absolute, absolute_router, candidates_of, search_folders
from rayllm.config.secrets import unexpanded
from rayllm.config.yaml import parse_yaml, read_yaml
from rayllm.core.errors import ConfigError

logger = logging.getLogger(__name__)

_BUCKETS = ("s3://", "gs://")


def load_model(path: Path | str) -> ModelConfig:
    """Load a model's YAML file.

    Raises:
        ConfigError: the file is missing or invalid; the message lists every fault.
    """
    return model_from(read_yaml(Path(path)), str(path), (Path(path).resolve().parent, Path.cwd()))


def model_from(raw: Any, name: str, folders: tuple[Path, ...]) -> ModelConfig:
    """Validate a model's parsed mapping, `name` in errors. Relative paths are looked up in the folders, in order.

    Raises ConfigError with every fault, one a line.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: must be a mapping of keys such as `model_loading_config`, not {_kind(raw)}.")
    refuse_removed_model(raw, name)
    changes = Changes()
    config = upgrade(raw, changes)
    for change in changes.all:
        logger.warning("%s: %s.", name, change)
    if faults := [f"{name}: {fault}" for fault in unexpanded(config, "")]:
        raise ConfigError("\n".join(faults))
    faults = absolute(config, folders, name)
    try:
        model = ModelConfig.model_validate(config)
    except ValidationError as error:
        faults.append(config_error(name, ModelConfig, error).message)
    if faults:
        raise ConfigError("\n".join(faults))
    return model


def named_model(text: str, model_id: str | None = None) -> ModelConfig:
    """The configuration for a name on the command line: a model file, a hub id, a local folder or a bucket URI.

    Without `model_id`, the model's name is derived from its source or file. Raises ConfigError.
    """
    if text.endswith((".yaml", ".yml")):
        return load_model(text)
    path = Path(text).expanduser()
    if text.startswith(_BUCKETS):
        name = _name(text)
    elif path.is_dir():
        name, text = _name(str(path.resolve())), str(path.absolute())
    else:
        name = _name(text) if text.startswith(("/", ".", "~")) else text
    loading = {"model_id": model_id or name, "model_source": text}
    return model_from({"model_loading_config": loading}, "model", (Path.cwd(),))


def _name(path: str) -> str:
    """The last part of a path, reduced to a valid model id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.rstrip("/").rpartition("/")[2]).lstrip("-._") or "model"


def file_name(model_id: str) -> str:
    """File name for a model: its id with `--` for `/`, and `_` for `.` and `:`."""
    return model_id.replace("/", "--").replace(".", "_").replace(":", "_") + ".yaml"


def generation_from(path: Path) -> GenerationConfig:
    """Load a file with the keys of `generation_config`, which an adapter may have beside its weights.

    Raises ConfigError with every fault, one a line.
    """
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping of keys such as `prompt_format`, not {_kind(raw)}.")
    with validating(str(path), GenerationConfig):
        return GenerationConfig.model_validate(raw)


def load_app(args: dict[str, Any], folder: Path | None = None) -> AppConfig:
    """Load the service that a serve config's `args` describe.

    Args:
        args: `llm_configs` (paths, folders, globs or mappings) and, optionally, `router`.
        folder: folder of the serve config. Relative paths are looked up in it, in the folder above it, as for a config
            in `serve_configs` beside `models`, and in the working directory.

    Raises:
        ConfigError: lists every fault of every file, one a line.
    """
    if not isinstance(args, dict):
        raise ConfigError(f"args: must be a mapping with `llm_configs`, not {_kind(args)}.")
    faults: list[str] = []
    for key in args.keys() - {"llm_configs", "router"}:
        hint = did_you_mean(key, ["llm_configs", "router"]) or "; known here: llm_configs, router."
        faults.append(f"args.{key}: unknown key{hint}")
    folders = search_folders(folder)
    models = _models(args.get("llm_configs"), folders, faults)
    router = _router(args.get("router") or {}, folders, faults)
    faults += unexpanded(args.get("router"), "args.router")
    if faults:
        raise ConfigError("\n".join(faults))
    with validating("args", AppConfig):
        return AppConfig(models=tuple(models), router=router)


def yaml_files(text: str) -> list[Path]:
    """The .yaml and .yml files of a path, folder or glob, as in `llm_configs`; raises ConfigError without any."""
    return _files(text, text, (Path.cwd(),))


def load_serve_file(path: Path | str) -> list[dict[str, Any]]:
    """Read the applications of a Ray Serve config file, as raw mappings.

    Raises ConfigError for a file that is missing, no YAML, lists no applications, or has one of RayLLM 0.
    """
    raw = read_yaml(Path(path))
    applications = raw.get("applications") if isinstance(raw, dict) else None
    if not isinstance(applications, list) or not all(isinstance(app, dict) for app in applications):
        raise ConfigError(f"{path}: applications: must be a list of applications, as `serve run` takes it.")
    for index, application in enumerate(applications):
        refuse_removed_application(application.get("import_path"), f"{path}: applications.{index}")
    return applications


def _router(raw: Any, folders: tuple[Path, ...], faults: list[str]) -> RouterConfig:
    try:
        return RouterConfig.model_validate(absolute_router(raw, folders))
    except ValidationError as error:
        faults.append(config_error("args.router", RouterConfig, error).message)
        return RouterConfig()


def _models(entries: Any, folders: tuple[Path, ...], faults: list[str]) -> list[ModelConfig]:
    if not isinstance(entries, list) or not entries:
        faults.append("args.llm_configs: must be a list of model YAML files, folders, globs or mappings.")
        return []
    models = []
    for index, entry in enumerate(entries):
        try:
            for raw, file in expand(entry, key := f"args.llm_configs.{index}", folders, _files):
                own = (file.parent, *folders) if file else folders
                models.append(model_from(raw, str(file or key), tuple(dict.fromkeys(own))))
        except ConfigError as error:
            faults.append(error.message)
    return models


def expand(
    entry: Any, key: str, folders: tuple[Path, ...], files_of: Callable[[str, str, tuple[Path, ...]], list[Path]]
) -> Iterator[tuple[Any, Path | None]]:
    """The raw mappings of one entry of `llm_configs`, at `key`, each with its file, if any.

    `files_of` finds the files of a path, by its key and the folders to search. Raises ConfigError for what cannot be
    read.
    """
    if isinstance(entry, dict):
        yield entry, None
    elif isinstance(entry, str) and "\n" in entry:
        yield parse_yaml(entry, key), None
    elif isinstance(entry, str):
        yield from ((read_yaml(path), path) for path in files_of(entry, key, folders))
    else:
        raise ConfigError(f"{key}: must be a path or a mapping, not {_kind(entry)}.")


def _files(text: str, key: str, folders: tuple[Path, ...]) -> list[Path]:
    """The model files of a path, folder or glob, in the first folder with a match."""
    candidates = candidates_of(text, folders)
    for candidate in candidates:
        if candidate.is_file():
            return [candidate]
        paths = candidate.iterdir() if candidate.is_dir() else map(Path, glob.glob(str(candidate)))
        if files := sorted(path for path in paths if path.suffix in (".yaml", ".yml") and path.is_file()):
            return files
        if candidate.is_dir():
            raise ConfigError(f"{key}: the folder {candidate} holds no .yaml or .yml file.")
    raise ConfigError(f"{key}: no such file or folder: {' or '.join(map(str, candidates))}.")


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "a mapping", str: "text", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
