"""Fault after fault on the real stack, and every answer compared with the right one.

`python -m benchmarks.chaos` injects all faults, or some at random for as long as you like.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import endure
from benchmarks.faults.answers import Ending
from benchmarks.faults.application import running
from benchmarks.faults.experiment import Experiment
from benchmarks.faults.report import table

STREAMS = 8
# The others take half a minute each, or are in test_faults.py, test_continuation.py and test_scaling.py.
INJECTED = (
    "kill -9 of a replica",
    "a rolling update",
    "kill -9 of a router",
    "full disk of a router",
    "full disk of a replica",
    "full disk of an engine",
    "kill -9 of the actor of quotas",
    "kill -9 of the actor of loaded adapters",
)
# Of the streams under way whose replica is lost, so many have to be continued and end right.
LEAST_CONTINUED = 0.9
# A router takes with it what it has not handed over yet, and connections that clients use again while they close.
ROUTERS_DIE = {"kill -9 of a router"}


@pytest.mark.timeout(900)
async def test_nothing_is_wrong_and_nothing_is_silent(proxy_url: str, tmp_path: Path) -> None:
    with running(tmp_path, "/chaos") as address:
        # Clients that leave the machine some time, in which what was lost starts again.
        experiment = Experiment(address, STREAMS, pause_s=0.5, calm_s=1.5)
        seen = await endure(experiment, ((None, fault) for fault in INJECTED), float("inf"))
    print(table(seen))
    assert experiment.calm.bad == 0, experiment.calm.reasons
    for fault, tally in seen.items():
        assert tally.endings[Ending.WRONG] == 0, (fault, tally.reasons)
        assert tally.endings[Ending.CUT] == 0, (fault, tally.reasons)
        assert tally.endings[Ending.REFUSED] == 0, (fault, tally.reasons)
        assert tally.endings[Ending.LOST] == 0 or fault in ROUTERS_DIE, (fault, tally.reasons)
    continued = sum(tally.continued for tally in seen.values())
    interrupted = sum(tally.endings[Ending.EVENT] for tally in seen.values())
    assert continued >= LEAST_CONTINUED * (continued + interrupted), [tally.reasons for tally in seen.values()]
    assert sum(tally.endings[Ending.RIGHT] for tally in seen.values()) > 0
