"""The watched file of keys: changes take effect, and a broken file changes nothing."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from rayllm.access import Key, KeyFile
from rayllm.access.key import key_hash
from rayllm.core.errors import AuthenticationError, UnavailableError
from rayllm.serving.router.access import credentials
from rayllm.serving.router.access.credentials import KeyWatcher


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    file = KeyFile(str(tmp_path / "keys.yaml"))
    with file.change() as keys:
        keys.append(Key(name="alice", hash=key_hash("a", file.salt)))
    return file


def test_a_change_takes_effect(file: KeyFile) -> None:
    watcher = KeyWatcher(file.uri)
    watcher.read()
    assert watcher.keyring.find("a").name == "alice"
    with file.change() as keys:
        keys[0] = keys[0].model_copy(update={"hash": key_hash("b", file.salt)})
    watcher.read()
    assert watcher.keyring.find("b").name == "alice"
    with pytest.raises(AuthenticationError):
        watcher.keyring.find("a")


def test_a_broken_file_leaves_the_last_keys_and_is_reported_once(
    file: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = KeyWatcher(file.uri)
    watcher.read()
    good = Path(file.uri).read_text()
    for broken in ("keys: [", None):
        caplog.clear()
        if broken is None:
            Path(file.uri).unlink()
        else:
            Path(file.uri).write_text(broken)
        watcher.read()
        watcher.read()
        assert watcher.keyring.find("a").name == "alice"
        [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "The last valid keys stay in force" in record.getMessage()
        assert file.uri in record.getMessage()
    Path(file.uri).write_text(good)
    caplog.set_level(logging.INFO)
    watcher.read()
    assert "valid again" in caplog.text


def test_without_a_valid_file_all_requests_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watcher = KeyWatcher(str(tmp_path / "keys.yaml"))
    watcher.read()
    with pytest.raises(UnavailableError) as caught:
        _ = watcher.keyring
    assert caught.value.status == 503
    assert str(tmp_path) not in caught.value.message
    assert "All requests are refused" in caplog.text


async def test_it_reads_by_itself(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_PERIOD_S", 0.01)
    watcher = KeyWatcher(file.uri)
    await watcher.start()
    with file.change() as keys:
        keys.append(Key(name="bob", hash=key_hash("b", file.salt)))
    async with asyncio.timeout(30):
        while len(watcher.keyring.keys) < 2:
            await asyncio.sleep(0.01)
    watcher.stop()
