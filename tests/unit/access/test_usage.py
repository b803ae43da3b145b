"""The ledger of usage, in a folder and in a bucket."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rayllm.access import usage_reader, usage_upload
from rayllm.access.usage import COUNTS, GROUPS, Totals, UsageEntry, day_of, today, usage_rows
from rayllm.access.usage_ledger import DAYS_KEPT, UsageLedger, UsageWriter
from rayllm.access.usage_reader import UsageReader
from rayllm.access.usage_upload import UsageUpload
from rayllm.core.errors import UnavailableError
from rayllm.sources.cache.locks import try_exclusive
from rayllm.sources.storage import Folder
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

NOW = time.time()
YESTERDAY = NOW - 86400
LABELS = {"team": "search", "stage": "test"}
ENTRY = UsageEntry(NOW, "req-1", "alice", "m", "pirate", prompt_tokens=10, cached_tokens=4, completion_tokens=3)


def row(requests: int, prompt: int, cached: int, completion: int, **groups: str) -> dict[str, object]:
    counts = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion}
    return {**groups, "requests": requests, **counts}


async def totals(folder: Path | str, since: str = "2000-01-01", until: str = "") -> dict[str, Totals]:
    return await UsageReader(Folder(str(folder))).totals(since, until)


def requests(files: dict[str, Totals]) -> int:
    return sum(int(each[COUNTS[0]]) for each in usage_rows(files.values(), []))


def test_an_entry_is_a_line() -> None:
    for entry in (ENTRY, replace(ENTRY, labels=LABELS)):
        assert UsageEntry.parse(entry.line) == entry
        assert entry.line.count(b"\n") == 1
    for broken in (b"", b"[]\n", b"{}\n", ENTRY.line[:-10], b"\xff\n"):
        assert UsageEntry.parse(broken) is None


def test_an_entry_of_an_earlier_version_counts() -> None:
    values = json.loads(ENTRY.line)
    del values["labels"]
    assert UsageEntry.parse(json.dumps(values).encode()) == ENTRY


async def test_processes_write_and_another_reads(tmp_path: Path) -> None:
    reader = UsageReader(Folder(str(tmp_path)))
    assert await reader.totals("2000-01-01") == {}
    writers = [UsageWriter(tmp_path, name) for name in ("a", "b")]
    for _ in range(3):
        for writer in writers:
            writer.write(ENTRY)
        await reader.totals("2000-01-01")
    writers[0].write(replace(ENTRY, key="bob", adapter="", completion_tokens=5, labels=LABELS))
    found = await reader.totals(day_of(NOW))
    assert sorted(name[: len(day_of(NOW)) + 3] for name in found) == [f"{day_of(NOW)}/a-", f"{day_of(NOW)}/b-"]
    rows = usage_rows(found.values(), ["key", "model"])
    assert rows == [
        row(6, 60, 24, 18, key="alice", model="m"),
        row(1, 10, 4, 5, key="bob", model="m"),
    ]
    of_bob = await reader.totals(day_of(NOW), key="bob")
    assert {group[GROUPS.index("key")] for part in of_bob.values() for group in part} == {"bob"}
    assert usage_rows(of_bob.values(), []) == [row(1, 10, 4, 5)]
    assert await reader.totals(day_of(NOW), key="carol") == {}
    assert [each["adapter"] for each in usage_rows(found.values(), ["adapter"])] == ["", "pirate"]
    by_label = usage_rows(found.values(), ["label:team", "label:none"])
    assert [(each["label:team"], each["label:none"], each["requests"]) for each in by_label] == [
        ("", "", 6),
        ("search", "", 1),
    ]
    assert usage_rows((await totals(tmp_path)).values(), ["key", "model"]) == rows


async def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    UsageWriter(tmp_path, "a").write(ENTRY)
    [file] = tmp_path.rglob("*.jsonl")
    reader = UsageReader(Folder(str(tmp_path)))
    with file.open("ab") as more:
        for part in (ENTRY.line[:20], ENTRY.line[20:]):
            assert requests(await reader.totals("2000-01-01")) == 1
            more.write(part)
            more.flush()
    assert requests(await reader.totals("2000-01-01")) == 2


async def test_days_are_chosen_and_old_days_deleted(tmp_path: Path) -> None:
    writer = UsageWriter(tmp_path, "a")
    for days in (DAYS_KEPT + 5, 10, 0):
        writer.write(replace(ENTRY, at=NOW - days * 86400))
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [day_of(NOW - 10 * 86400), day_of(NOW)]
    assert len(await totals(tmp_path)) == 2
    assert len(await totals(tmp_path, day_of(NOW - 5 * 86400))) == 1
    assert len(await totals(tmp_path, "2000-01-01", day_of(NOW - 5 * 86400))) == 1
    assert await totals(tmp_path, "2000-01-02", "2000-01-01") == {}


def test_a_folder_that_cannot_be_written_fails_no_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    UsageWriter(tmp_path / "file", "a").write(ENTRY)


def test_each_application_has_a_ledger() -> None:
    assert UsageLedger.for_application("/shared", "app") == UsageLedger("/shared/app", Path("/shared/app"))
    assert UsageLedger.for_application(None, "app").folder.parts[-2:] == ("usage", "app")
    in_bucket = UsageLedger.for_application("s3://b/usage/", "app")
    assert (in_bucket.uri, in_bucket.is_uploaded) == ("s3://b/usage/app", True)
    assert in_bucket.folder != UsageLedger.for_application("s3://b/usage", "other").folder


async def read_all(reader: UsageReader) -> tuple[dict[str, Totals], int]:
    """All sums, and how many calls did not get to the end."""
    for tries in itertools.count():
        with suppress(UnavailableError):
            return await reader.totals("2000-01-01"), tries
    raise AssertionError


async def test_other_tasks_have_their_turn_while_many_entries_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200_000
    (tmp_path / today()).mkdir()
    with (tmp_path / today() / "a.jsonl").open("wb") as file:
        for _ in range(100):
            file.write(ENTRY.line * (count // 100))
    loop, slices, turns, read = asyncio.get_running_loop(), list[int](), set[int](), UsageReader._read_file

    def seen(self: UsageReader, path: str, sums: usage_reader._FileSums) -> Iterator[int]:
        for size in read(self, path, sums):
            slices.append(size)
            loop.call_soon_threadsafe(turns.add, len(slices))
            yield size
            # The next slice begins.
            assert len(slices) in turns, "nobody else had a turn"

    monkeypatch.setattr(UsageReader, "_read_file", seen)
    # What an entry says is not what this is about, and takes most of the time.
    monkeypatch.setattr(usage_reader.UsageEntry, "parse", lambda line: ENTRY if line else None)
    found, _ = await read_all(UsageReader(Folder(str(tmp_path))))
    assert requests(found) == count
    assert max(slices) <= usage_reader.SLICE_BYTES
    assert len(slices) >= count * len(ENTRY.line) // usage_reader.SLICE_BYTES


async def test_one_call_reads_for_a_while_and_the_next_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_reader, "_LONGEST_S", -1.0)
    monkeypatch.setattr(usage_reader, "SLICE_BYTES", 1000)
    writer = UsageWriter(tmp_path, "a")
    for _ in range(30):
        writer.write(ENTRY)
    reader = UsageReader(Folder(str(tmp_path)))
    with pytest.raises(UnavailableError, match=f"up to {day_of(NOW)} so far; try again") as refused:
        await reader.totals("2000-01-01")
    assert refused.value.retry_after_s == 1
    found, tries = await read_all(reader)
    assert requests(found) == 30
    # One slice each, of as many entries as are whole.
    assert tries + 1 >= 30 * len(ENTRY.line) // 1000


async def test_a_day_that_is_over_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = UsageWriter(tmp_path, "a")
    for at in (YESTERDAY, YESTERDAY, NOW):
        writer.write(replace(ENTRY, at=at))
    first = await totals(tmp_path)
    assert [path.parent.name for path in tmp_path.rglob(".sums.json")] == [day_of(YESTERDAY)]
    read: list[str] = []
    read_file = UsageReader._read_file
    monkeypatch.setattr(
        UsageReader, "_read_file", lambda self, path, sums: read.append(path) or read_file(self, path, sums)
    )
    assert await totals(tmp_path) == first
    assert [path.partition("/")[0] for path in read] == [day_of(NOW)]
    # A day that is over now was read while it was not.
    reader = UsageReader(Folder(str(tmp_path)))
    await reader.totals("2000-01-01")
    with monkeypatch.context() as patch:
        patch.setattr(usage_reader, "today", lambda: day_of(NOW + 86400))
        await reader.totals("2000-01-01", day_of(NOW))
    assert len(list(tmp_path.rglob(".sums.json"))) == 2
    (tmp_path / day_of(NOW) / ".sums.json").unlink()
    # What comes late is added; sums that are damaged are made again.
    UsageWriter(tmp_path, "b").write(replace(ENTRY, at=YESTERDAY))
    assert requests(await totals(tmp_path)) == 4
    assert requests(await totals(tmp_path, "2000-01-01", day_of(YESTERDAY))) == 3
    [saved] = tmp_path.rglob(".sums.json")
    for damage in ("{", "[]", '{"a": 1}'):
        saved.write_text(damage)
        assert requests(await totals(tmp_path)) == 4


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UsageLedger]:
    """A ledger in a bucket of an S3 server, which a busy machine may make slow."""
    monkeypatch.setattr(usage_reader, "_LONGEST_S", 3600.0)
    with S3Server() as s3:
        s3.put("ledger", {})
        variables = {
            "AWS_ENDPOINT_URL_S3": s3.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield UsageLedger("s3://ledger/usage/app", tmp_path / "upload")


async def test_entries_are_uploaded_once_by_whichever_process(
    ledger: UsageLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_upload, "SEGMENT_BYTES", 400)
    writers = [UsageWriter(ledger.folder, name) for name in ("a", "b")]
    uploads = [UsageUpload(ledger) for _ in writers]
    reader = UsageReader(Folder(ledger.uri))
    for number in range(1, 13):
        for writer in writers:
            writer.write(ENTRY)
        # Both take turns, and one of them has just been started.
        uploads[number % 2].run()
        UsageUpload(ledger).run()
        assert requests(await reader.totals("2000-01-01")) == 2 * number
    names = Folder(ledger.uri).names(today())
    assert 4 < len(names) < 24
    assert requests(await totals(ledger.uri)) == 24


async def test_what_a_dead_process_has_left_is_uploaded_and_then_deleted(ledger: UsageLedger) -> None:
    dead, living = UsageWriter(ledger.folder, "dead"), UsageWriter(ledger.folder, "living")
    for writer in (dead, living):
        writer.write(replace(ENTRY, at=YESTERDAY))
    dead.close()
    # It was killed in the middle of a line.
    [left] = ledger.folder.rglob("dead-*.jsonl")
    with left.open("ab") as file:
        file.write(ENTRY.line[:20])
    UsageUpload(ledger).run()
    assert [path.name[:6] for path in ledger.folder.rglob("*.jsonl")] == ["living"]
    # Its clock has jumped: it goes on with the day before.
    living.write(replace(ENTRY, at=YESTERDAY))
    dead.write(replace(ENTRY, at=YESTERDAY))
    living.close()
    dead.close()
    UsageUpload(ledger).run()
    assert list(ledger.folder.rglob("*.jsonl")) == []
    assert requests(await totals(ledger.uri)) == 4


async def test_while_one_process_uploads_no_other_does(ledger: UsageLedger) -> None:
    UsageWriter(ledger.folder, "a").write(ENTRY)
    other = UsageUpload(ledger)
    with try_exclusive(ledger.folder / "upload.lock") as is_alone:
        assert is_alone
        other.run()
    assert await totals(ledger.uri) == {}
    other.run()
    assert requests(await totals(ledger.uri)) == 1


async def test_a_bucket_that_is_away_loses_nothing(
    ledger: UsageLedger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    UsageWriter(ledger.folder, "a").write(ENTRY)
    upload = UsageUpload(UsageLedger("s3://no-such-bucket/usage", ledger.folder))
    upload.run()
    upload.run()
    assert len([each for each in caplog.records if "cannot be uploaded" in each.message]) == 1
    UsageUpload(ledger).run()
    assert requests(await totals(ledger.uri)) == 1
