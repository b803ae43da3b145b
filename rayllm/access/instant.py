"""Moments that are saved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Instant:
    """A moment of which another process can tell how long ago it was, even if the clock is set meanwhile.

    `epoch_s` are seconds since the epoch, and `monotonic_s` those of a clock that is never set, which all processes of
    a machine share until it boots; `boot` names that.
    """

    epoch_s: float
    monotonic_s: float
    boot: str

    @classmethod
    def now(cls) -> Instant:
        """This moment."""
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        return cls(time.time(), time.monotonic(), boot)

    @property
    def age_s(self) -> float:
        """Seconds since then. On another machine or after a reboot, clocks have to be right for that."""
        now = Instant.now()
        is_same = bool(self.boot) and self.boot == now.boot
        return max(0.0, now.monotonic_s - self.monotonic_s if is_same else now.epoch_s - self.epoch_s)
