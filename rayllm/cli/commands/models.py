"""`rayllm models`"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rayllm.cli.client.server_options import server_options
from rayllm.cli.terminal.table import Table
from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey

if TYPE_CHECKING:
    from rayllm.client.api.model_card import ModelCard


@click.command("models", help="List a server's models and adapters.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(url: Address, key: ApiKey, as_json: bool) -> None:
    cards = asyncio.run(_cards(url, key))
    if as_json:
        click.echo(json.dumps([asdict(card) | {"kind": card.kind(cards)} for card in cards], indent=1))
    elif cards:
        click.echo(table(cards).text())
    else:
        click.echo("no models.", err=True)


async def _cards(url: Address, key: ApiKey) -> list[ModelCard]:
    from rayllm.client.api.server import Server

    async with Server(url, key) as server:
        return await server.models()


def table(cards: Sequence[ModelCard]) -> Table:
    """A table of a server's models."""
    result = Table(["model", "kind", "context"])
    for card in cards:
        result.add([card.id, card.kind(cards), f"{card.context:,}" if card.context else ""])
    return result
