"""Read the files to convert: models and serve configs, and the files that those list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rayllm.config.yaml import read_yaml
from rayllm.core.errors import ConfigError
from rayllm.deploy.conversion.entries import Entry, files_in
from rayllm.deploy.conversion.model import Draft
from rayllm.deploy.conversion.serve import Served, ServeDraft, read_serve

Origin = tuple[Path, str]
"""A resolved file, and a path in it; "" is the whole file."""


@dataclass
class Reading:
    """The files read, each once, and their faults."""

    drafts: dict[Origin, Draft] = field(default_factory=dict)
    serves: list[ServeDraft] = field(default_factory=list)
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
        return sum(not draft.prefix for draft in self.drafts.values()) + len(self.serves)


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
    return reading


def origin_of(serve: ServeDraft, entry: Entry) -> Origin:
    """The origin of a model that a serve config lists."""
    return (entry.file.resolve(), "") if entry.file else (serve.file.resolve(), f"{entry.key}.")


def _read(file: Path, reading: Reading, place: Path | None) -> None:
    raw = read_yaml(file)
    if isinstance(raw, dict) and "applications" in raw:
        _read_serve(read_serve(file, raw, place), reading)
    else:
        # A serve config may have read it already, and knows more about it.
        reading.drafts.setdefault((file.resolve(), ""), Draft(file, raw, (file.resolve().parent, Path.cwd())))


def _read_serve(serve: ServeDraft, reading: Reading) -> None:
    reading.serves.append(serve)
    for served in serve.served:
        for entry in served.entries:
            origin = origin_of(serve, entry)
            reading.drafts[origin] = _draft(serve, served, entry, reading.drafts.get(origin))


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
    )


def _shown(file: Path) -> Path:
    """The file's name in messages, relative if it is below the working directory."""
    resolved, here = file.resolve(), Path.cwd()
    return resolved.relative_to(here) if resolved.is_relative_to(here) else file
