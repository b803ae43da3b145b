"""`rayllm batch status` of a service's batches. The other commands run in tests/integration/test_batch_job.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rayllm.cli.commands.batch import command
from rayllm.cli.shared.server import ServerError
from tests.servers.openai import OpenAIServer

BATCH: dict[str, Any] = {
    "id": "batch_1",
    "status": "in_progress",
    "request_counts": {"total": 5, "completed": 2, "failed": 1},
}


@pytest.fixture
def service() -> Iterator[OpenAIServer]:
    with OpenAIServer(key="secret") as server:
        server.batches = {"batch_1": BATCH}
        yield server


def status(service: OpenAIServer, *arguments: str, key: str = "secret") -> Result:
    variables = {"RAYLLM_URL": service.url, "OPENAI_API_KEY": key}
    return CliRunner(env=variables).invoke(command, ["status", *arguments])


@pytest.mark.parametrize("arguments", [(), ("batch_1",)])
def test_batches_are_lines(service: OpenAIServer, arguments: tuple[str, ...]) -> None:
    result = status(service, *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "batch_1  in_progress  3 of 5 done, 1 failed\n"


def test_batches_are_json(service: OpenAIServer) -> None:
    assert json.loads(status(service, "--json").stdout) == [BATCH]
    assert json.loads(status(service, "batch_1", "--json").stdout) == BATCH


def test_no_batches(service: OpenAIServer) -> None:
    service.batches = {}
    result = status(service)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no batches.\n")


def test_a_wrong_key_is_an_error(service: OpenAIServer) -> None:
    error = status(service, key="other").exception
    assert isinstance(error, ServerError)
    assert "rejects the key" in error.message


@pytest.mark.parametrize("batch", [{}, {"id": 1, "status": "failed"}, {"id": "batch_1", "status": "failed"}])
def test_another_kind_of_server_is_an_error(service: OpenAIServer, batch: dict[str, Any]) -> None:
    service.batches = {"batch_1": batch}
    assert isinstance(status(service, "batch_1").exception, ServerError)
