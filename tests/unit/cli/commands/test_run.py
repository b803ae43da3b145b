"""`rayllm run` and `rayllm demo`: options that are refused before anything starts."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from rayllm.cli.commands.demo import command as demo
from rayllm.cli.commands.run import command as run


@pytest.mark.parametrize(("command", "arguments"), [(demo, ()), (run, ("serve_configs/demo.yaml",))])
@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_does_not_exist(command: click.Command, arguments: tuple[str, ...], port: str) -> None:
    done = CliRunner().invoke(command, [*arguments, "--port", port])
    assert done.exit_code == 2
    assert f"Invalid value for '--port': {port} is not in the range 0<=x<=65535" in done.stderr
