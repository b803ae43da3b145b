"""Read serve configs, and rewrite their applications' `args`."""

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rayllm.config.legacy import Changes, Mapping, at, copied, refuse_removed_application, tables
from rayllm.config.load import expand, file_name
from rayllm.config.paths import find, kept_in
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion.formats import Format
from rayllm.deploy.conversion.keys.secrets import references_in, take_from_variables
from rayllm.deploy.conversion.keys.sources import from_place
from rayllm.deploy.conversion.model import Draft
from rayllm.deploy.conversion.ray_service import CONFIG, read_service

IMPORT_PATH = "rayllm:app"
_RAY_SERVE_LLM = re.compile(r"ray\.serve\.llm(?:\.\w+)*:(\w+)")
_BUILDER = "build_openai_app"
SERVE_KEYS = set(tables()["serve_keys"])
_PLATFORM_KEY = "query_auth_token_enabled"
"""In every serve config of RayLLM 1, for Anyscale's services."""
INGRESS_OPTIONS = ("num_replicas", "max_ongoing_requests", "max_queued_requests")
"""Options of `ray.serve.llm`'s ingress that are keys of `args.router`."""


@dataclass
class Served:
    """An application that serves models.

    Attributes:
        where: the application's path in the serve config, with a trailing dot.
        models: its models.
        router: what becomes `args.router`.
    """

    where: str
    form: Format
    raw: Mapping
    models: list[Draft] = field(default_factory=list)
    router: Any = field(default_factory=dict)


@dataclass
class ServeDraft:
    """A serve config to convert.

    Attributes:
        prefix: the serve config's path in `file`, with a trailing dot.
        name: name of the result's file.
        around: the keys beside `applications`.
    """

    file: Path
    prefix: str
    name: str
    raw: Mapping
    around: Mapping
    changes: Changes
    applications: list[Served | Mapping]

    @property
    def served(self) -> list[Served]:
        """The applications that serve models."""
        return [each for each in self.applications if isinstance(each, Served)]

    @property
    def models(self) -> list[Draft]:
        return [draft for served in self.served for draft in served.models]


def read_serve_of(file: Path, service: Mapping, place: Path | None, prefix: str) -> ServeDraft:
    """Read the serve config of a RayService, which is at the path `prefix` in `file`, as `read_serve` does."""
    changes = Changes()
    raw = read_service(file, service, prefix, changes)
    name = file_name(str(at(service, "metadata").get("name") or file.stem))
    return read_serve(file, raw, place, f"{prefix}{CONFIG}.", name, changes)


def read_serve(
    file: Path, raw: Mapping, place: Path | None, prefix: str = "", name: str = "", changes: Changes | None = None
) -> ServeDraft:
    """Read a parsed serve config, for a result in the folder `place`, and its models; raises ConfigError."""
    listed, changes = raw.get("applications"), changes or Changes()
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ConfigError(f"{file}: {prefix}applications: must be a list of applications, as `serve run` takes it.")
    applications = list(_applications(file, listed, prefix, _PLATFORM_KEY in raw, place, changes))
    draft = ServeDraft(file, prefix, name or file.name, raw, _around(raw, prefix, changes), changes, applications)
    if not draft.served and not changes.faults:
        known = f"`{IMPORT_PATH}` or `ray.serve.llm:{_BUILDER}`"
        changes.refuse(f"{prefix}applications", f"none serves models; an `import_path` that does is {known}.")
    if changes.faults:
        raise ConfigError("\n".join(f"{file}: {fault}" for fault in changes.faults))
    return draft


def _around(raw: Mapping, prefix: str, changes: Changes) -> Mapping:
    for key in raw.keys() - SERVE_KEYS:
        changes.dropped(prefix + key, "it is not a key of Ray Serve; a platform that reads it has its own config")
    return {key: copied(value) for key, value in raw.items() if key in SERVE_KEYS}


def _applications(
    file: Path, listed: list[Mapping], prefix: str, is_early: bool, place: Path | None, changes: Changes
) -> Iterator[Served | Mapping]:
    for index, application in enumerate(listed):
        where, path = f"{prefix}applications.{index}.", str(application.get("import_path"))
        form, builder = _form(path, is_early), _RAY_SERVE_LLM.fullmatch(path)
        try:
            refuse_removed_application(path, where.rstrip("."))
            if builder and builder[1] != _BUILDER:
                why = tables()["builders"].get(builder[1], f"only `{_BUILDER}` is")
                changes.refuse(f"{where}import_path", f"`{path}` is not carried over: {why}.")
            elif form is None:
                yield _other(copied(application), where, changes)
            else:
                yield _served(file, Served(where, form, copied(application)), place, changes)
        except ConfigError as error:
            changes.faults += error.message.splitlines()


def _form(import_path: str, is_early: bool) -> Format | None:
    """The format of an application that serves models; None for any other application."""
    if _RAY_SERVE_LLM.fullmatch(import_path):
        return Format.RAY_SERVE_LLM
    if import_path == IMPORT_PATH:
        return Format.EARLY if is_early else Format.CURRENT
    return None


def _other(application: Mapping, where: str, changes: Changes) -> Mapping:
    """Another application, without the secrets in its environment."""
    variables = at(application, "runtime_env", "env_vars")
    for name in take_from_variables(variables, f"{where}runtime_env.env_vars", changes):
        del variables[name]
        key = f"{where}runtime_env.env_vars.{name}"
        changes.dropped(key, "Ray Serve does not expand references; set it on the nodes")
    return application


def _served(file: Path, served: Served, place: Path | None, changes: Changes) -> Served:
    where, raw = served.where, served.raw
    args = raw.get("args")
    args = dict(args) if isinstance(args, dict) else {}
    folders = tuple(dict.fromkeys((file.resolve().parent, Path.cwd())))
    known = None if served.form is Format.CURRENT else served.form
    variables = tuple(_variables(raw, where, changes))
    model = Draft(_shown(file), None, folders, is_listed=True, known=known, variables=variables)
    served.models = list(_expand(args.pop("llm_configs", None), f"{where}args.llm_configs", model))
    if served.form is Format.RAY_SERVE_LLM:
        _ingress(served, args, changes)
        changes.rewritten(f"{where}import_path", f"is `{IMPORT_PATH}` now")
        why = "deployments have other names; put the options into the models' `deployment_config`"
        changes.drop_from(raw, "deployments", why, where)
    else:
        served.router = _router(args.pop("router", None) or {}, folders, place)
    # Unknown arguments stay; validation reports them.
    raw["args"] = args
    return served


def _variables(raw: Mapping, where: str, changes: Changes) -> list[str]:
    """Move references and secrets from an application's environment to its models', where references are expanded."""
    environment = raw.get("runtime_env")
    variables = at(raw, "runtime_env", "env_vars")
    take_from_variables(variables, f"{where}runtime_env.env_vars", changes)
    names = references_in(variables)
    for name in names:
        del variables[name]
        how = "is now in `runtime_env.env_vars` of each model, where references are expanded at deploy time"
        changes.rewritten(f"{where}runtime_env.env_vars.{name}", how)
    if isinstance(environment, dict) and names and not variables:
        del environment["env_vars"]
        if not environment:
            del raw["runtime_env"]
    return names


def _ingress(served: Served, args: Mapping, changes: Changes) -> None:
    where = f"{served.where}args."
    ingress = args.pop("ingress_cls_config", None)
    if isinstance(ingress, dict):
        for key in ingress:
            changes.dropped(f"{where}ingress_cls_config.{key}", "the router is RayLLM's own; see `args.router`")
    options = args.pop("ingress_deployment_config", None)
    for key, value in (options if isinstance(options, dict) else {}).items():
        path = f"{where}ingress_deployment_config.{key}"
        if key in INGRESS_OPTIONS and isinstance(value, int) and value > 0:
            served.router[key] = value
            changes.renamed(path, f"args.router.{key}")
        elif key == "autoscaling_config":
            changes.dropped(path, "the number of routers is fixed: `args.router.num_replicas`")
        else:
            changes.dropped(path, "a router has no such option")


def _router(router: Any, folders: tuple[Path, ...], place: Path | None) -> Any:
    """`args.router` with its relative paths rewritten for the folder `place`."""
    batches = router.get("batches") if isinstance(router, dict) else None
    storage = batches.get("storage") if isinstance(batches, dict) else None
    if place and isinstance(storage, str) and "://" not in storage and not storage.startswith(("/", "~")):
        where = from_place(place, storage, Path(kept_in(storage, folders)))
        return {**router, "batches": {**at(router, "batches"), "storage": where}}
    return router


def _expand(value: Any, key: str, model: Draft) -> Iterator[Draft]:
    """Expand the files, folders, globs, mappings and inline YAML at `key`: a list, or a string for a list of one.

    `model` has what the models have in common, which are inline unless they have a file.
    """
    if value is None:
        return
    listed = value if isinstance(value, list) else [value]
    for index, item in enumerate(listed):
        where = f"{key}.{index}" if isinstance(value, list) else key
        for raw, file in expand(item, where, model.folders, _files_of):
            if file:
                folders = tuple(dict.fromkeys((file.resolve().parent, *model.folders)))
                yield replace(model, file=_shown(file), raw=raw, folders=folders)
            else:
                yield replace(model, raw=raw, prefix=f"{where}.")


def _shown(file: Path) -> Path:
    """The file's name in messages, relative within the working directory."""
    resolved, here = file.resolve(), Path.cwd()
    return resolved.relative_to(here) if resolved.is_relative_to(here) else file


def _files_of(text: str, key: str, folders: tuple[Path, ...]) -> list[Path]:
    """The files of a path, a glob, or a folder and its subfolders; raises ConfigError without any."""
    if glob.has_magic(text):
        patterns = [folder / Path(text).expanduser() for folder in folders]
        paths = next(filter(None, (sorted(map(Path, glob.glob(str(each)))) for each in patterns)), [])
    else:
        paths = [find(text, folders, key)]
    files = [file for path in paths for file in (files_in(path) if path.is_dir() else [path])]
    if not files:
        raise ConfigError(f"{key}: `{text}` holds no .yaml, .yml or .json file.")
    return files


def files_in(folder: Path) -> list[Path]:
    """The YAML and JSON files of a folder, recursively."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml", ".json") and path.is_file())
