"""A server for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.openai import OpenAIServer


@pytest.fixture
def served() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server
