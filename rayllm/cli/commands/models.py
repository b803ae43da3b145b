"""`rayllm models`"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from rayllm.cli.shared.server import Model, Server
from rayllm.cli.shared.server_options import server_options
from rayllm.cli.terminal.table import Table


@click.command("models", help="List a server's models and adapters.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(server: Server, as_json: bool) -> None:
    models = server.models()
    if as_json:
        click.echo(json.dumps([asdict(model) for model in models], indent=1))
    elif models:
        click.echo(table(models).text())
    else:
        click.echo("no models.", err=True)


def table(models: Sequence[Model]) -> Table:
    """A table of a server's models."""
    result = Table(["model", "kind", "context"])
    for model in models:
        result.add([model.id, model.kind, f"{model.context:,}" if model.context else ""])
    return result
