"""`rayllm validate`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rayllm.config import load_app, load_model, load_serve_file
from rayllm.config.yaml import read_yaml
from rayllm.errors import ConfigError


@click.command("validate", help="Check serve configs and model files: every fault of every file, one a line.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def command(files: tuple[Path, ...]) -> None:
    faults = 0
    for path in files:
        try:
            click.echo(f"{path}: ok, {_check(path)}")
        except ConfigError as error:
            faults += len(error.message.splitlines())
            click.echo(error.message, err=True)
    if faults:
        click.echo(f"{faults} fault{'s' if faults > 1 else ''} found.", err=True)
        sys.exit(1)


def _check(path: Path) -> str:
    """What the file holds, in a few words."""
    raw = read_yaml(path)
    if isinstance(raw, dict) and "applications" in raw:
        configs = [load_app(a.get("args") or {}, path.resolve().parent) for a in load_serve_file(path)]
        return "models " + ", ".join(model.model_id for config in configs for model in config.models)
    return f"model {load_model(path).model_id}"
