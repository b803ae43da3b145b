"""Usage of requests in the ledger of a replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayllm.access.usage_ledger import UsageLedger
from rayllm.core import headers
from rayllm.core.request_stats import RequestStats, StatsSource
from rayllm.serving.replica.usage_meter import UsageMeter
from rayllm.serving.wire.journal import JournalFile

STATS = RequestStats(prompt_tokens=3, generated_tokens=5)


def scope_of_alice() -> dict[str, Any]:
    scope: dict[str, Any] = {"type": "http", "headers": [(headers.USAGE.encode(), b"alice")]}
    StatsSource().add_to(scope)
    return scope


def written(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.rglob("*") if file.is_file())


async def ledger_after(folder: Path, fault: str, is_continuable: bool) -> str:
    """The lines of the ledger after one stream."""
    journal = JournalFile.create().open()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        source = StatsSource.in_scope(scope)
        assert source
        source.read = lambda: STATS
        journal.open(is_continuable)
        if fault:
            setattr(journal, fault, True)

    meter = UsageMeter(app, "m", "replica")
    meter.write_to(UsageLedger.for_application(str(folder), "app"))
    scope = scope_of_alice()
    journal.add_to(scope)
    await meter(scope, None, None)  # type: ignore[arg-type]
    await meter.close()
    return written(folder)


@pytest.mark.parametrize(
    ("fault", "is_continuable", "is_written"),
    [("", True, True), ("engine_is_lost", True, False), ("is_moved", True, False), ("engine_is_lost", False, True)],
    ids=["complete", "engine lost", "moved", "lost for good"],
)
async def test_a_stream_that_goes_on_elsewhere_is_counted_there(
    tmp_path: Path, fault: str, is_continuable: bool, is_written: bool
) -> None:
    written = await ledger_after(tmp_path, fault, is_continuable)
    assert ("alice" in written) is is_written


async def test_it_is_written_once_and_before_the_client_has_all_of_its_reply(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        source = StatsSource.in_scope(scope)
        assert source
        source.read = lambda: STATS
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        await send({"type": "http.response.body", "body": b"}"})

    lines: list[int] = []

    async def send(message: Any) -> None:
        lines.append(written(tmp_path).count("alice"))

    meter = UsageMeter(app, "m", "replica")
    meter.write_to(UsageLedger.for_application(str(tmp_path), "app"))
    await meter(scope_of_alice(), None, send)  # type: ignore[arg-type]
    await meter.close()
    assert (lines, written(tmp_path).count("alice")) == ([0, 0, 1], 1)
