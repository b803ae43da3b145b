"""A router and a replica on one node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.handover import HandoverPair, handover_pair


@pytest.fixture
async def pair() -> AsyncIterator[HandoverPair]:
    async with handover_pair() as found:
        yield found
