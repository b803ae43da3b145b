"""The manual page: every command with its options, in roff that prints what it says."""

from __future__ import annotations

import re

import click
import pytest

from rayllm.cli.main import cli
from scripts.manual_page import _escaped, manual

REQUESTS = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}


def commands(group: click.Group, name: str) -> list[tuple[str, click.Command]]:
    ctx = click.Context(group)
    found: list[tuple[str, click.Command]] = []
    for each in group.list_commands(ctx):
        command = group.get_command(ctx, each)
        assert command is not None
        found.append((f"{name} {each}", command))
        if isinstance(command, click.Group):
            found += commands(command, f"{name} {each}")
    return found


def test_it_has_every_command_and_option() -> None:
    _, *sections = re.split(r'^\.SS "(.*)"$', manual(), flags=re.MULTILINE)
    texts = {name.replace("\\-", "-"): text for name, text in zip(sections[::2], sections[1::2], strict=True)}
    assert list(texts) == [name for name, _ in commands(cli, "rayllm")]
    for name, command in commands(cli, "rayllm"):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert max(parameter.opts, key=len).replace("-", "\\-") in texts[name]


def test_it_has_no_request_that_is_not_meant() -> None:
    lines = [line for line in manual().splitlines() if line.startswith((".", "'"))]
    assert {line.partition(" ")[0] for line in lines} == REQUESTS
    assert manual().count("\n.nf\n") == manual().count("\n.fi\n")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("--json", "\\-\\-json"), ("a\\b", "a\\eb"), (".TH", "\\&.TH"), ("'quoted'", "\\&'quoted'"), ("plain", "plain")],
)
def test_text_is_escaped(text: str, escaped: str) -> None:
    assert _escaped(text) == escaped
