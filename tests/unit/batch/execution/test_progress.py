"""How far a job is, and how that looks."""

from __future__ import annotations

import io
import logging

import pytest

from rayllm.batch.execution import progress
from rayllm.batch.execution.progress import Display, JobProgress, Totals, count
from rayllm.batch.rows import ERROR

DONE = Totals(rows=3, failed=1, input_tokens=20, generated_tokens=40)


class Terminal(io.StringIO):
    """Standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_rows_are_counted() -> None:
    rows = [
        {"num_input_tokens": 5, "num_generated_tokens": 7, ERROR: None},
        {"num_input_tokens": 3, "num_generated_tokens": None},
        {ERROR: "broken."},
    ]
    assert count(rows) == Totals(rows=3, failed=1, input_tokens=8, generated_tokens=7)
    assert count([]) == Totals()


def test_progress_adds_up() -> None:
    found = JobProgress()
    found.add(Totals(1, 0, 2, 3))
    found.add(Totals(1, 1, 2, 3))
    assert found.totals() == Totals(2, 1, 4, 6)


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(progress, "_MIN_ELAPSED_S", 0.0)
    caplog.set_level(logging.INFO, progress.__name__)
    display = Display("generate m", 10)
    display.show(Totals(rows=1))
    assert caplog.messages == []
    monkeypatch.setattr(progress, "_LOG_PERIOD_S", -1.0)
    display.show(DONE)
    monkeypatch.setattr(progress, "_LOG_PERIOD_S", 60.0)
    display.show(DONE)
    (line,) = caplog.messages
    assert line.startswith("generate m: 3 of 10 rows, ")
    assert "rows/s" in line
    assert "tokens/s" in line
    assert line.endswith("1 failed.")


def test_the_last_line_is_always_there(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    caplog.set_level(logging.INFO, progress.__name__)
    display = Display("requests", None)
    display.show(Totals(rows=2))
    display.close()
    # All that is known came at once: there is no telling how long it took.
    assert caplog.messages == ["requests: 2 rows."]


def test_rates_count_from_what_is_shown_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    caplog.set_level(logging.INFO, progress.__name__)
    display = Display("requests", None)
    display.show(Totals(rows=64, generated_tokens=500))
    now += 4
    display.show(Totals(rows=104, generated_tokens=700))
    display.close()
    assert caplog.messages == ["requests: 104 rows, 10.0 rows/s, 0 + 50 tokens/s."]


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    caplog.set_level(logging.INFO, progress.__name__)
    monkeypatch.setattr(progress, "_MIN_ELAPSED_S", 0.0)
    display = Display("generate m", 10)
    display.show(Totals(rows=1))
    display.show(DONE)
    display.close()
    shown = terminal.getvalue()
    for words in ("generate m", "3/10", "tokens/s", "1 failed"):
        assert words in shown
    assert caplog.messages == []
