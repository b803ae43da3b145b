"""Wheels beside a backend: unpacked once, and importable for that backend only."""

from __future__ import annotations

import asyncio
import importlib
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rayllm.core.errors import ConfigError
from rayllm.engine.guided.backend import Backends
from rayllm.engine.guided.wheels import unpack

# Everything a backend may do with its wheels: at load, lazily, relatively, by importlib, and across an await.
BACKEND = """
import asyncio
import importlib
import tinydep

LOADED = tinydep.VERSION

async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    await asyncio.sleep(0)
    import tinydep.lazy
    await asyncio.sleep(0.001)
    by_name = importlib.import_module("tinydep.other")
    return [LOADED, tinydep.VERSION, tinydep.lazy.VERSION, tinydep.relative(), by_name.VERSION]

async def get_guided_decoding_constrained_generator(response, raw_request):
    async def events():
        async for item in response:
            from tinydep.streamed import VERSION
            yield item + VERSION
    return events()
"""


def wheel(folder: Path, version: str, tags: str = "py3-none-any", name: str = "tinydep", data: bool = False) -> Path:
    """A wheel of the package `name` whose modules all know `version`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tags}.whl"
    root = f"{name}-{version}.data/purelib/{name}" if data else name
    with zipfile.ZipFile(path, "w") as archive:
        relative = f"VERSION = {version!r}\ndef relative():\n    from . import near\n    return near.VERSION\n"
        archive.writestr(f"{root}/__init__.py", relative)
        for module in ("lazy", "near", "other", "streamed"):
            archive.writestr(f"{root}/{module}.py", f"from {name} import VERSION\n")
        archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")
    return path


def backend(folder: Path, name: str, version: str) -> None:
    wheel(folder / name, version)
    (folder / name / "backend.py").write_text(BACKEND)


async def test_two_backends_have_two_versions_and_the_process_none(tmp_path: Path) -> None:
    backend(tmp_path, "one", "1.0")
    backend(tmp_path, "two", "2.0")
    backends = Backends.load(tmp_path, None, tmp_path / "_cache")
    path = list(sys.path)

    async def versions(name: str) -> list[str]:
        made: list[str] = await backends.by_name[name].logits_processor(None, None)
        return made

    # At once, so that each waits while the other is between two steps.
    one, two, again = await asyncio.gather(versions("one"), versions("two"), versions("one"))
    assert (one, two, again) == (["1.0"] * 5, ["2.0"] * 5, ["1.0"] * 5)
    assert not [name for name in sys.modules if name.partition(".")[0] == "tinydep"]
    assert sys.path == path
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tinydep")


async def test_generators_and_plain_calls_find_them_too(tmp_path: Path) -> None:
    backend(tmp_path, "one", "1.0")
    one = Backends.load(tmp_path, None, tmp_path / "_cache").by_name["one"]

    async def events():  # type: ignore[no-untyped-def]
        for item in "ab":
            assert "tinydep" in sys.modules
            yield item

    stream = one.steps_of(await one.respond(events(), None))
    assert [item async for item in stream] == ["a1.0", "b1.0"]
    with one.isolation, one.isolation:
        assert importlib.import_module("tinydep").VERSION == "1.0"
    assert "tinydep" not in sys.modules


async def test_what_the_process_has_of_that_name_stays_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_site" / "tinydep").mkdir(parents=True)
    (tmp_path / "_site" / "tinydep" / "__init__.py").write_text("VERSION = 'of the process'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "_site"))
    ours = importlib.import_module("tinydep")
    try:
        backend(tmp_path, "one", "1.0")
        one = Backends.load(tmp_path, None, tmp_path / "_cache").by_name["one"]
        assert await one.logits_processor(None, None) == ["1.0"] * 5
        assert sys.modules["tinydep"] is ours
        assert "tinydep.lazy" not in sys.modules
    finally:
        del sys.modules["tinydep"]


async def test_exceptions_and_cancellation_leave_nothing_behind(tmp_path: Path) -> None:
    wheel(tmp_path / "one", "1.0")
    (tmp_path / "one" / "backend.py").write_text(
        "import asyncio, tinydep\n"
        "async def get_custom_guided_decoding_logits_processor(request, tokenizer):\n"
        "    try:\n        await asyncio.sleep(9)\n    finally:\n        import tinydep.lazy\n"
        "async def set_custom_guided_decoding_parameters(request):\n    raise ValueError(tinydep.VERSION)\n"
    )
    one = Backends.load(tmp_path, None, tmp_path / "_cache").by_name["one"]
    with pytest.raises(ValueError, match=r"1\.0"):
        await one.prepare(None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.logits_processor(None, None), 0.01)
    assert not [name for name in sys.modules if name.partition(".")[0] == "tinydep"]


def test_a_wheel_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = wheel(tmp_path, "1.0", "cp27-cp27m-win32")
    with pytest.raises(ConfigError, match="does not fit this Python and platform") as caught:
        unpack([path], tmp_path / "cache", "a")
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "said"), [("tinydep.whl", "not the name of a wheel"), ("tinydep-1.0-py3-none-any.whl", "a broken wheel")]
)
def test_a_broken_wheel_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=said):
        unpack([tmp_path / name], tmp_path / "cache", "a")
    assert not [entry for entry in tmp_path.glob("cache/guided/*") if entry.is_dir()]


def test_two_wheels_of_one_distribution_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tinydep-1\.0-py3-none-any\.whl brings `tinydep` too"):
        unpack([wheel(tmp_path, "1.0"), wheel(tmp_path, "2.0")], tmp_path / "cache", "a")


def test_the_name_in_the_specification_is_a_wheels(tmp_path: Path) -> None:
    odd = "my_dep_-0.1.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    (tmp_path / odd).touch()
    with pytest.raises(ConfigError, match="does not fit"):
        unpack([tmp_path / odd], tmp_path / "cache", "a")


def test_libraries_of_the_data_folder_are_importable(tmp_path: Path) -> None:
    folder = unpack([wheel(tmp_path, "1.0", data=True)], tmp_path / "cache", "a")
    assert (folder / "tinydep" / "lazy.py").is_file()
    assert not list(folder.glob("*.data"))


def test_many_processes_unpack_once_and_content_decides(tmp_path: Path) -> None:
    path, cache = wheel(tmp_path, "1.0"), tmp_path / "cache"
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: unpack([path], cache, "a"), range(16)))
    (folder,) = folders
    assert folder.parent == cache / "guided"
    made = folder.stat().st_ino
    assert unpack([path], cache, "a").stat().st_ino == made
    path.unlink()
    with zipfile.ZipFile(wheel(tmp_path, "1.0"), "a") as archive:
        archive.writestr("tinydep/more.py", "")
    assert unpack([path], cache, "a") != folder
    assert {entry.name for entry in folder.parent.iterdir() if entry.name.startswith(".")} == set()
