"""`rayllm run` and `rayllm demo`: what is decided or refused before anything starts."""

from __future__ import annotations

import os

import click
import pytest
from click.testing import CliRunner

from rayllm.cli.commands.demo import command as demo
from rayllm.cli.commands.run import command as run
from rayllm.cli.commands.run import pace_controller


@pytest.mark.parametrize(("command", "arguments"), [(demo, ()), (run, ("serve_configs/demo.yaml",))])
@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_does_not_exist(command: click.Command, arguments: tuple[str, ...], port: str) -> None:
    done = CliRunner().invoke(command, [*arguments, "--port", port])
    assert done.exit_code == 2
    assert f"Invalid value for '--port': {port} is not in the range 0<=x<=65535" in done.stderr


@pytest.mark.parametrize(("models", "period_s"), [(1, "0.1"), (100, "0.1"), (1000, "1.0")])
def test_the_controller_looks_less_often_at_many_models(
    monkeypatch: pytest.MonkeyPatch, models: int, period_s: str
) -> None:
    monkeypatch.setattr(os, "environ", {})
    pace_controller(models)
    pace_controller(2 * models)
    assert os.environ["RAY_SERVE_CONTROL_LOOP_INTERVAL_S"] == period_s, "what is set stays"
