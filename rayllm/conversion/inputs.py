"""Read the files to convert: models, adapters and serve configs, and the files that those list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rayllm.config.legacy import Changes
from rayllm.config.yaml import read_yaml
from rayllm.conversion.adapter import Adapter, read_adapter
from rayllm.conversion.entries import Entry, files_in
from rayllm.conversion.model import Draft
from rayllm.conversion.serve import Served, ServeDraft, read_serve
from rayllm.errors import ConfigError

Origin = tuple[Path, str]
"""A resolved file, and a path in it; "" is the whole file."""


@dataclass
class GivenAdapter:
    """An adapter; `among` are the models that may be its base (None: any), `base` is the one that is."""

    file: Path
    adapter: Adapter
    changes: Changes
    among: list[Origin] | None = None
    base: Origin | None = None


@dataclass
class Reading:
    """The files read, each once, and their faults."""

    drafts: dict[Origin, Draft] = field(default_factory=dict)
    serves: list[ServeDraft] = field(default_factory=list)
    adapters: list[GivenAdapter] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect a ConfigError and continue."""
        try:
            yield
        except ConfigError as error:
            self.faults += error.message.splitlines()

    @property
    def count(self) -> int:
        """Number of files that it becomes."""
        own = sum(not draft.prefix for draft in self.drafts.values())
        return own + len(self.serves) + sum(bool(given.adapter.generation) for given in self.adapters)


def read_files(paths: Iterable[Path], place: Path | None) -> Reading:
    """Read files, and those that serve configs among them list.

    Args:
        paths: files and folders.
        place: the folder of converted serve configs; None leaves relative paths in them as they are.
    """
    reading = Reading()
    for path in paths:
        for file in files_in(path) if path.is_dir() else [path]:
            with reading.collecting():
                _read(file, reading, place)
    for given in reading.adapters:
        _attach(given, reading)
    return reading


def origin_of(serve: ServeDraft, entry: Entry) -> Origin:
    """The origin of a model that a serve config lists."""
    return (entry.file.resolve(), "") if entry.file else (serve.file.resolve(), f"{entry.key}.")


def _read(file: Path, reading: Reading, place: Path | None) -> None:
    raw = read_yaml(file)
    if isinstance(raw, dict) and "applications" in raw:
        _read_serve(read_serve(file, raw, place), reading)
    elif isinstance(raw, dict) and "base_model_id" in raw:
        _read_adapter(Entry("", file, raw), file, None, reading)
    else:
        # A serve config may have read it already, and knows more about it.
        reading.drafts.setdefault((file.resolve(), ""), Draft(file, raw, (file.resolve().parent, Path.cwd())))


def _read_serve(serve: ServeDraft, reading: Reading) -> None:
    reading.serves.append(serve)
    for served in serve.served:
        for entry in served.entries:
            origin = origin_of(serve, entry)
            reading.drafts[origin] = _draft(serve, served, entry, reading.drafts.get(origin))
        among = [origin_of(serve, entry) for entry in served.entries]
        for entry in served.adapters:
            _read_adapter(entry, serve.file, among, reading)


def _draft(serve: ServeDraft, served: Served, entry: Entry, earlier: Draft | None) -> Draft:
    file = entry.file or serve.file
    folders = (file.resolve().parent, serve.file.resolve().parent, Path.cwd())
    variables = (*(earlier.variables if earlier else ()), *served.variables)
    return Draft(
        _shown(file),
        entry.raw,
        tuple(dict.fromkeys(folders)),
        "" if entry.file else f"{entry.key}.",
        is_listed=True,
        known=served.known,
        variables=tuple(dict.fromkeys(variables)),
        adapter_path=served.path_of(entry) or (earlier.adapter_path if earlier else None),
    )


def _read_adapter(entry: Entry, serve_file: Path, among: list[Origin] | None, reading: Reading) -> None:
    changes = Changes("" if entry.file else f"{entry.key}.")
    adapter = read_adapter(entry.raw if isinstance(entry.raw, dict) else {}, changes)
    given = GivenAdapter(_shown(entry.file or serve_file), adapter, changes, among)
    if not any(entry.file and other.file == given.file for other in reading.adapters):
        reading.adapters.append(given)
        reading.faults += [f"{given.file}: {fault}" for fault in changes.faults]


def _attach(given: GivenAdapter, reading: Reading) -> None:
    among = reading.drafts if given.among is None else given.among
    given.base = next((origin for origin in among if reading.drafts[origin].model_id == given.adapter.base), None)
    if given.base is not None:
        draft = reading.drafts[given.base]
        reading.drafts[given.base] = replace(draft, adapters=(*draft.adapters, given.adapter))
    elif not given.changes.faults:
        why = f"the file of `{given.adapter.base}` is not given; convert both at once."
        given.changes.refuse("base_model_id", why)
        reading.faults.append(f"{given.file}: {given.changes.faults[-1]}")


def _shown(file: Path) -> Path:
    """The file's name in messages, relative if it is below the working directory."""
    resolved, here = file.resolve(), Path.cwd()
    return resolved.relative_to(here) if resolved.is_relative_to(here) else file
