"""`rayllm validate`"""

import glob
import json
import sys
from pathlib import Path
from typing import Any

import click

from rayllm.access import check_key_file
from rayllm.cli.shared.application import is_serve_file
from rayllm.config import load_app, load_model, load_serve_file, yaml_files
from rayllm.config.yaml import read_yaml
from rayllm.core.errors import ConfigError
from rayllm.serving.router.hooks.process import check_hooks


@click.command(
    "validate",
    help="""Check serve configs and model files; prints every fault of every file, one per line.

    FILES are files, folders of them, or globs.""",
)
@click.argument("files", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(files: tuple[str, ...], as_json: bool) -> None:
    checked = [result for name in files for result in _check_all(name)]
    faults = sum(len(result["faults"]) for result in checked)
    if as_json:
        click.echo(json.dumps({"files": checked, "faults": faults}, indent=1))
    else:
        for result in checked:
            for fault in result["faults"]:
                click.echo(fault, err=True)
            if not result["faults"]:
                models = result["models"]
                click.echo(f"{result['file']}: ok, model{'s' if len(models) > 1 else ''} {', '.join(models)}")
        if faults:
            click.echo(f"{faults} fault{'s' if faults > 1 else ''} found.", err=True)
    if faults:
        sys.exit(1)


def _check_all(name: str) -> list[dict[str, Any]]:
    """Check a file, or the files of a folder or glob."""
    if not Path(name).is_dir() and not glob.has_magic(name):
        return [_check(Path(name))]
    try:
        return [_check(path) for path in yaml_files(name)]
    except ConfigError as error:
        return [{"file": name, "models": [], "faults": [error.message]}]


def _check(path: Path) -> dict[str, Any]:
    """The models of a file, and its faults."""
    try:
        return {"file": str(path), "models": _models(path), "faults": []}
    except ConfigError as error:
        return {"file": str(path), "models": [], "faults": error.message.splitlines()}


def _models(path: Path) -> list[str]:
    if not is_serve_file(read_yaml(path)):
        return [load_model(path).model_id]
    configs = [load_app(each.get("args") or {}, path.resolve().parent) for each in load_serve_file(path)]
    for config in configs:
        check_key_file(config.router.keys)
        check_hooks(config.router.hooks, "args.router")
    return [model.model_id for config in configs for model in config.models]
