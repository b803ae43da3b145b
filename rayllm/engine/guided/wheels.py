"""Unpacks the wheels beside a `backend.py` into a folder that Python can import from.

Nothing is installed: scripts and headers are skipped, and dependencies are not fetched.
"""

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from rayllm.core.errors import ConfigError
from rayllm.sources.cache.locks import exclusive


def unpack(wheels: Sequence[Path], cache: Path, name: str) -> Path:
    """The folder `<cache>/guided/<name>-<hash of the wheels>` with the contents of `wheels`.

    The folder is created once per node, under a file lock, and published atomically.

    Raises:
        ConfigError: a wheel is broken or incompatible, two contain the same distribution, or the cache is not writable.
            The message names the wheel.
    """
    check(wheels)
    try:
        folder = cache / "guided" / f"{name}-{_digest(wheels)}"
        with exclusive(folder.with_name(folder.name + ".lock"), lambda waited_s: None):
            if not folder.is_dir():
                _publish(wheels, folder)
    except OSError as error:
        raise ConfigError(f"{wheels[0].parent}: its wheels cannot be unpacked below {cache}: {error}.") from error
    return folder


def check(wheels: Sequence[Path]) -> None:
    """Refuse wheels that this Python cannot use, with a ConfigError as in `unpack`."""
    fitting = frozenset(sys_tags())
    seen: dict[str, Path] = {}
    for wheel in wheels:
        try:
            distribution, _, _, tags = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename as error:
            raise ConfigError(f"{wheel}: not the name of a wheel: {error}.") from None
        if tags.isdisjoint(fitting):
            raise ConfigError(
                f"{wheel}: it does not fit this Python and platform, which take {next(sys_tags())} and others. "
                "Build or download the wheel that does."
            )
        if distribution in seen:
            raise ConfigError(f"{wheel}: {seen[distribution].name} brings `{distribution}` too. Keep one of them.")
        seen[distribution] = wheel


def _digest(wheels: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for wheel in sorted(wheels):
        digest.update(wheel.name.encode())
        with wheel.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def _publish(wheels: Sequence[Path], folder: Path) -> None:
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for wheel in wheels:
            _extract(wheel, staging)
        # mkdtemp makes private folders; other users of the node may share the cache.
        staging.chmod(0o755)
        os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _extract(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ConfigError(f"{wheel}: a broken wheel: {error}. Copy it again.") from error
    for data in folder.glob("*.data"):
        # Source: https://packaging.python.org/en/latest/specifications/binary-distribution-format/#the-data-directory
        for library in (data / "purelib", data / "platlib"):
            if library.is_dir():
                shutil.copytree(library, folder, dirs_exist_ok=True)
        shutil.rmtree(data)
