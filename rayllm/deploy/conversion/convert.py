"""Convert a set of files: models, serve configs, and the files that those list."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rayllm.config import load_app
from rayllm.config.legacy import Change, Changes, Mapping, at, tables
from rayllm.config.load import file_name
from rayllm.config.yaml import dump_yaml, read_yaml
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion.formats import Format
from rayllm.deploy.conversion.keys.secrets import refuse_secrets
from rayllm.deploy.conversion.model import Converted, Draft, Origin, convert_model
from rayllm.deploy.conversion.ray_service import KIND
from rayllm.deploy.conversion.serve import IMPORT_PATH, Served, ServeDraft, files_in, read_serve, read_serve_of

PARAGRAPHS: list[list[str]] = tables()["paragraphs"]
"""Keys of a model's file in order, by paragraph."""
_MODELS = "model_config"


class FolderNeededError(ConfigError):
    """The input becomes several files, but the output is not a folder."""


@dataclass(frozen=True)
class Report:
    """The conversion of one file; without a path `to`, the text goes to the caller."""

    source: Path
    form: Format
    to: Path | None
    text: str
    changes: tuple[Change, ...]
    is_as_it_was: bool


def convert_files(paths: Iterable[Path], output: Path | None = None) -> list[Report]:
    """Convert files, and the files that serve configs list. Nothing is written.

    Args:
        paths: files and folders.
        output: the folder of the results, or the file (.yaml, .yml) of the only result, for which relative paths are
            rewritten. None keeps paths unchanged, and leaves the one text to the caller.

    Raises:
        ConfigError: a file cannot be converted; lists every fault of every file, one a line.
        FolderNeededError: there are several results, and the output is not a folder.
    """
    work = _Work(output)
    for path in paths:
        for file in files_in(path) if path.is_dir() else [path]:
            with work.collecting():
                work.read(file)
    if not work.folder and sum(not draft.prefix for draft in work.drafts.values()) + len(work.serves) > 1:
        raise FolderNeededError("these become several files; name a folder for them with --output")
    reports = list(work.reports())
    if work.faults:
        raise ConfigError("\n".join(dict.fromkeys(work.faults)))
    return reports


class _Work:
    """The files read, each once, and their results."""

    def __init__(self, output: Path | None) -> None:
        is_file = output is not None and output.suffix in (".yaml", ".yml") and not output.is_dir()
        self.output, self.folder = output, None if is_file else output
        # The folder of serve configs, or of the one file.
        self.place = output.parent if output and is_file else output
        self.drafts: dict[Origin, Draft] = {}
        self.serves: list[ServeDraft] = []
        self.converted: dict[Origin, Converted] = {}
        self.sources: dict[Path | None, Path] = {}
        self.faults: list[str] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect a ConfigError and continue."""
        try:
            yield
        except ConfigError as error:
            self.faults += error.message.splitlines()

    def read(self, file: Path) -> None:
        documents = read_yaml(file, many=True)
        services = [each for each in documents if at(each).get("kind") == KIND]
        for service in services:
            with self.collecting():
                prefix = f"{at(service, 'metadata').get('name')}." if len(services) > 1 else ""
                self._add(read_serve_of(file, service, self.place, prefix))
                for other in (each for each in documents if each and each not in services and service is services[0]):
                    name = f"{at(other).get('kind')}.{at(other, 'metadata').get('name')}"
                    self.serves[-1].changes.dropped(name, f"only a {KIND} is converted; apply it as it is")
        if services:
            return
        if len(documents) > 1:
            raise ConfigError(f"{file}: holds {len(documents)} documents, and none is a {KIND}; split the file.")
        raw = documents[0] if documents else None
        if not isinstance(raw, dict) or "applications" not in raw:
            draft = Draft(file, raw, (file.resolve().parent, Path.cwd()))
            # A serve config may have read it already, and knows more about it.
            self.drafts.setdefault(draft.origin, draft)
        else:
            self._add(read_serve(file, raw, self.place))

    def _add(self, serve: ServeDraft) -> None:
        self.serves.append(serve)
        for draft in serve.models:
            earlier = self.drafts.get(draft.origin, draft)
            variables = tuple(dict.fromkeys((*earlier.variables, *draft.variables)))
            self.drafts[draft.origin] = replace(draft, variables=variables)

    def reports(self) -> Iterator[Report]:
        models = self.folder / _MODELS if self.folder else self.place
        for origin, draft in self.drafts.items():
            with self.collecting():
                self.converted[origin] = convert_model(draft, self.place if draft.prefix else models)
        for serve in self.serves:
            with self.collecting():
                yield self._serve(serve)
        for origin, draft in self.drafts.items():
            if not draft.prefix and origin in self.converted:
                with self.collecting():
                    yield self._model(draft, self.converted[origin])

    def _model(self, draft: Draft, converted: Converted) -> Report:
        is_as_it_was = converted.form is Format.CURRENT and converted.config == draft.raw
        converted_text = "\n".join(dump_yaml(part) for part in _parts(converted.config))
        text = draft.file.read_text(encoding="utf-8") if is_as_it_was else converted_text
        to = self._reserved(f"{_MODELS}/{file_name(converted.model.model_id)}", draft.file)
        return Report(draft.file, converted.form, to, text, converted.changes, is_as_it_was)

    def _serve(self, serve: ServeDraft) -> Report:
        applications = [
            self._application(serve, each) if isinstance(each, Served) else each for each in serve.applications
        ]
        config, changes = {**serve.around, "applications": applications}, Changes()
        refuse_secrets(config, serve.prefix.rstrip("."), changes)
        if changes.faults:
            raise ConfigError("\n".join(f"{serve.file}: {fault}" for fault in changes.faults))
        is_as_it_was = config == serve.raw and not serve.prefix
        origins = [draft.origin for draft in serve.models if draft.prefix]
        inline = [change for origin in origins if origin in self.converted for change in self.converted[origin].changes]
        text = serve.file.read_text(encoding="utf-8") if is_as_it_was else _serve_text(config)
        to = self._reserved(serve.name, serve.file)
        # Its format is that of its first application.
        return Report(serve.file, serve.served[0].form, to, text, (*serve.changes.all, *inline), is_as_it_was)

    def _application(self, serve: ServeDraft, served: Served) -> Mapping:
        """Convert an application; raises ConfigError if the result would not load."""
        models = [(draft, self.converted[draft.origin]) for draft in served.models if draft.origin in self.converted]
        args = {**served.raw["args"], "llm_configs": [_listed(*each) for each in models]}
        if router := _router(served, [model for _, model in models]):
            args["router"] = router
        if len(models) == len(served.models):
            try:
                load_app({**args, "llm_configs": [model.resolved for _, model in models]}, serve.file.resolve().parent)
            except ConfigError as error:
                faults = [f"{serve.file}: {served.where}{line}" for line in error.message.splitlines()]
                raise ConfigError("\n".join(faults)) from None
        return {**served.raw, "import_path": IMPORT_PATH, "args": args}

    def _reserved(self, name: str, source: Path) -> Path | None:
        """The path of a result, which is `name` in the folder, for a source alone."""
        to = self.folder / name if self.folder else self.output
        if to in self.sources:
            raise ConfigError(f"{source}: becomes {to}, as {self.sources[to]} does; convert them one by one.")
        self.sources[to] = source
        return to


def _listed(draft: Draft, converted: Converted) -> str | Mapping:
    """A model in a serve config: inline in the order of its file, or the path of its file."""
    inline = {key: value for part in _parts(converted.config) for key, value in part.items()}
    return inline if draft.prefix else f"./{_MODELS}/{file_name(converted.model.model_id)}"


def _router(served: Served, models: Iterable[Converted]) -> object:
    """`args.router`, with the routing that models request."""
    routing = {each.model.model_id: each.routing for each in models if each.routing}
    if not routing or not isinstance(served.router, dict):
        return served.router
    return {**served.router, "routing_by_model": at(served.router, "routing_by_model") | routing}


def _parts(config: Mapping) -> list[Mapping]:
    rest = [key for key in config if not any(key in keys for keys in PARAGRAPHS)]
    parts = ({key: config[key] for key in keys if key in config} for keys in (*PARAGRAPHS, rest))
    return [part for part in parts if part]


def _serve_text(config: Mapping) -> str:
    head = {key: value for key, value in config.items() if key != "applications"}
    parts = [head, {"applications": config["applications"]}]
    return "\n".join(dump_yaml(part) for part in parts if part)
