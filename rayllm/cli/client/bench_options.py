"""Callbacks that parse the options of `rayllm bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rayllm.client.prompt_file import Line, read_lines
from rayllm.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.client.benchmark.benchmark import TokenRange
    from rayllm.client.benchmark.goodput import LatencyTargets


def token_range(ctx: click.Context, param: click.Parameter, value: str | None) -> TokenRange | None:
    """`256` or `128:512`."""
    from rayllm.client.benchmark.benchmark import TokenRange

    if value is None:
        return None
    minimum, _, maximum = value.partition(":")
    try:
        tokens = TokenRange(int(minimum), int(maximum or minimum))
    except ValueError:
        raise click.BadParameter(f"`{value}` is neither a number nor MIN:MAX.") from None
    if not 1 <= tokens.minimum <= tokens.maximum:
        raise click.BadParameter("needs 1 ≤ MIN ≤ MAX.")
    return tokens


def targets(ctx: click.Context, param: click.Parameter, value: str | None) -> LatencyTargets | None:
    """`ttft:200,e2e:5000`."""
    from rayllm.client.benchmark.goodput import LatencyTargets

    try:
        return None if value is None else LatencyTargets.parse(value)
    except ConfigError as error:
        raise click.BadParameter(error.message) from None


def percentiles(ctx: click.Context, param: click.Parameter, value: str) -> list[float]:
    """`50,90,99.9`."""
    try:
        shares = sorted({float(share) for share in value.split(",")})
    except ValueError:
        raise click.BadParameter(f"`{value}` is not a list such as 50,90,99.9.") from None
    if not all(0 <= share <= 100 for share in shares):
        raise click.BadParameter("takes numbers from 0 to 100.")
    return shares


def dataset(ctx: click.Context, param: click.Parameter, value: Path | None) -> list[Line]:
    """A file of prompts, in which every line is valid."""
    if value is None:
        return []
    try:
        lines = read_lines(value.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{value}: cannot be read: {error}.") from None
    if faulty := [line for line in lines if line.fault]:
        raise click.BadParameter(f"{value}: line {faulty[0].number} {faulty[0].fault}")
    if not lines:
        raise click.BadParameter(f"{value}: holds no prompts.")
    return lines
