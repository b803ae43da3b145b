"""Clocks that are set while the service runs."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest

from rayllm.access.key import Key
from rayllm.serving.cluster.state.quota_registry import Instant

DAY_S = 86400.0
JUMPS = pytest.mark.parametrize("jump_s", [-400 * DAY_S, -3600, 3600, 400 * DAY_S])


def set_clock(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    at = time.time
    monkeypatch.setattr(time, "time", lambda: at() + jump_s)


@JUMPS
def test_what_was_saved_is_as_old_as_it_is(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    saved = asdict(Instant.now())
    set_clock(monkeypatch, jump_s)
    assert 0 <= Instant(**saved).age_s < 1800


def test_after_a_reboot_the_clock_says_how_old(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = replace(Instant.now(), boot="another")
    set_clock(monkeypatch, 3600)
    assert 3600 <= saved.age_s < 7200
    set_clock(monkeypatch, -2 * DAY_S)
    assert saved.age_s == 0


def test_a_key_expires_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key(name="a", hash="0" * 64, expires=datetime.now(UTC) + timedelta(hours=1))
    assert not key.has_expired
    with monkeypatch.context() as patch:
        set_clock(patch, 2 * 3600)
        assert key.has_expired
    # It was set back.
    assert not key.has_expired
