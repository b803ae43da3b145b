"""The ledger of usage."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rayllm.access.usage import UsageEntry, day_of, usage_rows
from rayllm.access.usage_ledger import DAYS_KEPT, UsageReader, UsageWriter, usage_folder

NOW = time.time()
ENTRY = UsageEntry(NOW, "req-1", "alice", "m", "pirate", prompt_tokens=10, cached_tokens=4, completion_tokens=3)


def row(requests: int, prompt: int, cached: int, completion: int, **groups: str) -> dict[str, object]:
    counts = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion}
    return {**groups, "requests": requests, **counts}


def test_an_entry_is_a_line() -> None:
    assert UsageEntry.parse(ENTRY.line) == ENTRY
    assert ENTRY.line.count(b"\n") == 1
    for broken in (b"", b"[]\n", b"{}\n", ENTRY.line[:-10], b"\xff\n"):
        assert UsageEntry.parse(broken) is None


def test_processes_write_and_another_reads(tmp_path: Path) -> None:
    reader = UsageReader(tmp_path)
    assert reader.totals("2000-01-01") == {}
    writers = [UsageWriter(tmp_path, name) for name in ("a", "b")]
    for _ in range(3):
        for writer in writers:
            writer.write(ENTRY)
        reader.totals("2000-01-01")
    writers[0].write(replace(ENTRY, key="bob", adapter="", completion_tokens=5))
    totals = reader.totals(day_of(NOW))
    assert set(totals) == {f"{day_of(NOW)}/a.jsonl", f"{day_of(NOW)}/b.jsonl"}
    rows = usage_rows(totals.values(), ["key", "model"])
    assert rows == [
        row(6, 60, 24, 18, key="alice", model="m"),
        row(1, 10, 4, 5, key="bob", model="m"),
    ]
    assert usage_rows(totals.values(), [], "bob") == [
        row(1, 10, 4, 5),
    ]
    assert [row["adapter"] for row in usage_rows(totals.values(), ["adapter"])] == ["", "pirate"]
    assert usage_rows(UsageReader(tmp_path).totals(day_of(NOW)).values(), ["key", "model"]) == rows


def test_a_line_that_is_being_written_is_read_once_it_is_whole(tmp_path: Path) -> None:
    UsageWriter(tmp_path, "a").write(ENTRY)
    [file] = tmp_path.rglob("*.jsonl")
    reader = UsageReader(tmp_path)
    with file.open("ab") as more:
        for part in (ENTRY.line[:20], ENTRY.line[20:]):
            requests = usage_rows(reader.totals("2000-01-01").values(), [])[0]["requests"]
            assert requests == 1
            more.write(part)
            more.flush()
    assert usage_rows(reader.totals("2000-01-01").values(), [])[0]["requests"] == 2


def test_days_are_chosen_and_old_ones_deleted(tmp_path: Path) -> None:
    writer = UsageWriter(tmp_path, "a")
    for days in (DAYS_KEPT + 5, 10, 0):
        writer.write(replace(ENTRY, at=NOW - days * 86400))
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [day_of(NOW - 10 * 86400), day_of(NOW)]
    reader = UsageReader(tmp_path)
    assert len(reader.totals("2000-01-01")) == 2
    assert len(reader.totals(day_of(NOW - 5 * 86400))) == 1
    assert len(reader.totals("2000-01-01", day_of(NOW - 5 * 86400))) == 1


def test_a_folder_that_cannot_be_written_fails_no_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    UsageWriter(tmp_path / "file", "a").write(ENTRY)


def test_each_application_has_a_ledger() -> None:
    assert usage_folder("/shared", "app") == Path("/shared/app")
    assert usage_folder(None, "app").parts[-2:] == ("usage", "app")
