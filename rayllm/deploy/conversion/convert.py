"""Convert a set of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rayllm.config import load_app
from rayllm.config.legacy import Change, Changes
from rayllm.config.legacy.nested import Mapping, at
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion.formats import Format
from rayllm.deploy.conversion.inputs import Origin, Reading, origin_of, read_files
from rayllm.deploy.conversion.keys.secrets import refuse_secrets
from rayllm.deploy.conversion.model import Converted, Draft, convert_model
from rayllm.deploy.conversion.rendering import model_text, ordered, serve_text
from rayllm.deploy.conversion.serve import IMPORT_PATH, Served, ServeDraft
from rayllm.deploy.conversion.target import Target


class FolderNeededError(ConfigError):
    """The input becomes several files, but the target is not a folder."""


@dataclass(frozen=True)
class Report:
    """The conversion of one file; `to` is None if its text goes to the caller."""

    source: Path
    form: Format
    to: Path | None
    changes: tuple[Change, ...]
    is_as_it_was: bool = False


@dataclass(frozen=True)
class Conversion:
    """A report per file, and the texts of the results by path; the path None is the caller."""

    reports: tuple[Report, ...]
    texts: dict[Path | None, str]


def convert_files(paths: Iterable[Path], target: Target) -> Conversion:
    """Convert files, and those that serve configs among them list. Nothing is written.

    Args:
        paths: files and folders.
        target: where the results will be; relative paths in them are rewritten accordingly.

    Raises:
        ConfigError: a file cannot be converted; lists every fault of every file, one a line.
        FolderNeededError: they become several files, and the target is not a folder.
    """
    reading = read_files(paths, target.place)
    if not target.folder and reading.count > 1:
        raise FolderNeededError("these become several files; name a folder for them with --output")
    work = _Work(target, reading)
    work.convert()
    conversion = Conversion(tuple(work.reports()), work.texts)
    if reading.faults:
        raise ConfigError("\n".join(dict.fromkeys(reading.faults)))
    return conversion


@dataclass
class _Work:
    target: Target
    reading: Reading
    converted: dict[Origin, Converted] = field(default_factory=dict)
    texts: dict[Path | None, str] = field(default_factory=dict)
    sources: dict[Path | None, Path] = field(default_factory=dict)

    def convert(self) -> None:
        for origin, draft in self.reading.drafts.items():
            with self.reading.collecting():
                self.converted[origin] = convert_model(draft, self.target.place if draft.prefix else self.target.models)

    def reports(self) -> Iterator[Report]:
        for serve in self.reading.serves:
            with self.reading.collecting():
                yield self._serve(serve)
        for origin, draft in self.reading.drafts.items():
            if not draft.prefix and origin in self.converted:
                with self.reading.collecting():
                    yield self._model(draft, self.converted[origin])

    def _model(self, draft: Draft, converted: Converted) -> Report:
        to = self.target.model_file(converted.model.model_id)
        is_as_it_was = converted.form is Format.CURRENT and converted.config == draft.raw
        self._put(to, _text_of(draft.file) if is_as_it_was else model_text(converted.config), draft.file)
        return Report(draft.file, converted.form, to, converted.changes, is_as_it_was)

    def _serve(self, serve: ServeDraft) -> Report:
        applications = [
            self._application(serve, each) if isinstance(each, Served) else each for each in serve.applications
        ]
        config = {**serve.around, "applications": applications}
        changes = Changes()
        refuse_secrets(config, "", changes)
        if changes.faults:
            raise ConfigError("\n".join(f"{serve.file}: {fault}" for fault in changes.faults))
        is_as_it_was, to = config == serve.raw, self.target.serve_file(serve.file)
        self._put(to, _text_of(serve.file) if is_as_it_was else serve_text(config), serve.file)
        file = serve.file.resolve()
        inline = [change for origin, each in self.converted.items() if origin[0] == file for change in each.changes]
        return Report(serve.file, serve.form, to, (*serve.changes.all, *inline), is_as_it_was)

    def _application(self, serve: ServeDraft, served: Served) -> Mapping:
        """Convert an application.

        Raises:
            ConfigError: the result would not load.
        """
        origins = [origin_of(serve, entry) for entry in served.entries]
        models = [self.converted[origin] for origin in origins if origin in self.converted]
        listed = [self._entry(origin, self.converted[origin]) for origin in origins if origin in self.converted]
        args = {**served.raw["args"], "llm_configs": listed}
        if router := _router(served, models):
            args["router"] = router
        if len(models) == len(origins):
            try:
                load_app({**args, "llm_configs": [each.resolved for each in models]}, serve.file.resolve().parent)
            except ConfigError as error:
                faults = [f"{serve.file}: {served.where}{line}" for line in error.message.splitlines()]
                raise ConfigError("\n".join(faults)) from None
        return {**served.raw, "import_path": IMPORT_PATH, "args": args}

    def _entry(self, origin: Origin, converted: Converted) -> str | Mapping:
        return ordered(converted.config) if origin[1] else self.target.reference(converted.model.model_id)

    def _put(self, to: Path | None, text: str, source: Path) -> None:
        if to in self.texts:
            raise ConfigError(f"{source}: becomes {to}, as {self.sources[to]} does; convert them one by one.")
        self.texts[to], self.sources[to] = text, source


def _router(served: Served, models: list[Converted]) -> object:
    """`args.router`, with the routing that models request."""
    routing = {each.model.model_id: each.routing for each in models if each.routing}
    if not routing or not isinstance(served.router, dict):
        return served.router
    return {**served.router, "routing_by_model": at(served.router, "routing_by_model") | routing}


def _text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")
