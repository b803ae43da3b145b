"""`rayllm models`"""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from rayllm.cli.shared.server import Model, Server, server_options
from rayllm.cli.shared.terminal import table


@click.command("models", help="List a server's models and adapters.")
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(server: Server, as_json: bool) -> None:
    models = server.models()
    if as_json:
        click.echo(json.dumps([asdict(model) for model in models], indent=1))
    elif models:
        click.echo(model_table(models))
    else:
        click.echo("no models.", err=True)


def model_table(models: Sequence[Model]) -> str:
    rows = [(model.id, model.kind, f"{model.context:,}" if model.context else "") for model in models]
    return table(("model", "kind", "context"), rows)
