"""`rayllm doctor`"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict

import click

from rayllm.cli.machine.checks import Finding, findings
from rayllm.cli.machine.facts import Machine, read_machine
from rayllm.errors import ConfigError

_MARKS = {"ok": "ok", "warning": "warn", "error": "FAIL"}


@click.command(
    "doctor",
    help="""Check whether this machine can serve, and say what to do about what is missing or wrong.

    The exit status is 1 if something needed is missing or wrong; warnings do not change it.""",
)
@click.option("--fix", is_flag=True, help="Make the folders that do not exist yet; nothing else is changed.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def command(fix: bool, as_json: bool) -> None:
    machine = read_machine(os.environ)
    if fix and _make_folders(machine):
        machine = read_machine(os.environ)
    results = findings(machine)
    errors = sum(result.status == "error" for result in results)
    if as_json:
        click.echo(json.dumps({"ok": not errors, "checks": [asdict(result) for result in results]}, indent=1))
    else:
        _show(results)
    if errors:
        raise SystemExit(1)


def _make_folders(machine: Machine) -> bool:
    """Make the folders that do not exist; whether there were any.

    Raises:
        ConfigError: one cannot be made.
    """
    missing = [folder.path for folder in machine.folders if not folder.exists and folder.writable]
    for path in missing:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {path}: {error.strerror}.") from None
        click.echo(f"made {path}", err=True)
    return bool(missing)


def _show(results: Sequence[Finding]) -> None:
    """One line a check: its result, and the remedy."""
    width = max(len(result.check) for result in results)
    for result in results:
        remedy = f" → {result.remedy}" if result.remedy else ""
        click.echo(f"{_MARKS[result.status]:4}  {result.check:{width}}  {result.detail}{remedy}")
