"""`rayllm models`, and what all clients share: which server, which key."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from rayllm.cli.commands.models import command
from rayllm.cli.shared.server import ServerError
from tests.servers.openai import OpenAIServer
from tests.servers.process import free_port

NO_ADDRESS = {"RAYLLM_URL": None, "OPENAI_BASE_URL": None, "OPENAI_API_BASE": None, "OPENAI_API_KEY": None}


@pytest.fixture
def served() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def models(*arguments: str, **variables: str) -> Result:
    return CliRunner(env={**NO_ADDRESS, **variables}).invoke(command, list(arguments))


def test_models_are_a_table(served: OpenAIServer) -> None:
    result = models("--url", served.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split("  ")[0] for line in result.stdout.splitlines()] == ["model", "small", "small:pirate", "little"]
    assert "adapter of small" in result.stdout
    assert "4,096" in result.stdout


def test_models_are_json(served: OpenAIServer) -> None:
    listed = json.loads(models("--url", served.url, "--json").stdout)
    assert listed[1] == {
        "id": "small:pirate",
        "base": "small",
        "root": "small",
        "context": None,
        "owner": "test",
        "kind": "adapter of small",
    }


def test_a_server_without_models_is_told(served: OpenAIServer) -> None:
    served.models = {"data": []}
    result = models("--url", served.url)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no models.\n")


@pytest.mark.parametrize("variable", ["RAYLLM_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE"])
def test_the_environment_says_where_the_server_is(served: OpenAIServer, variable: str) -> None:
    assert models(**{variable: f"{served.url}/v1"}).exit_code == 0


def test_our_own_variable_goes_before_openais(served: OpenAIServer) -> None:
    assert models(RAYLLM_URL=served.url, OPENAI_BASE_URL="http://127.0.0.1:1").exit_code == 0


def test_the_key_is_taken_from_the_environment(served: OpenAIServer) -> None:
    served.key = "secret"
    assert models("--url", served.url, OPENAI_API_KEY="secret\n").exit_code == 0
    assert models("--url", served.url, "--api-key-env", "MY_KEY", MY_KEY="secret").exit_code == 0
    result = models("--url", served.url, "--api-key-env", "MY_KEY", MY_KEY="other")
    assert isinstance(result.exception, ServerError)
    assert "rejects the key in MY_KEY" in result.exception.message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--url", "ftp://h"], "is not an address such as"),
        (["--api-key-env", "NOT_THERE"], "the environment has no NOT_THERE"),
        (["--api-key-env", "ODD"], "ODD holds characters that cannot be sent in a header"),
    ],
)
def test_wrong_options_are_usage(arguments: list[str], expected: str) -> None:
    result = models(*arguments, ODD="a\nb")
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


def test_a_failure_is_a_line_and_a_hint_without_a_traceback() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    run = [sys.executable, "-m", "rayllm", "models", "--url", url]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error == f"error: {url}: cannot connect: Connection refused."
    assert hint.startswith("hint: ")
