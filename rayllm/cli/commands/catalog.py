"""`rayllm catalog`"""

import json

import click

from rayllm.cli.shared.terminal import table
from rayllm.config import load_model
from rayllm.config.faults import did_you_mean
from rayllm.core.bundled import bundled_folder
from rayllm.core.errors import ConfigError


@click.command(
    "catalog",
    help="""List the model files that come with RayLLM, or print the path of MODEL's.

    \b
    rayllm run "$(rayllm catalog Qwen/Qwen3-8B)"
    cp "$(rayllm catalog Qwen/Qwen3-8B)" my-model.yaml""",
)
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(model: str | None, as_json: bool) -> None:
    folder = bundled_folder() / "models"
    # With the files of `models/older` last.
    paths = [*sorted(folder.glob("*.yaml")), *sorted((folder / "older").glob("*.yaml"))]
    files = {load_model(path).model_id: path for path in paths}
    if model is not None:
        if model not in files:
            hint = did_you_mean(model, list(files)) or "; `rayllm catalog` lists them."
            raise ConfigError(f"{model}: not in the catalog{hint}")
        files = {model: files[model]}
    if as_json:
        click.echo(json.dumps([{"model": name, "file": str(path)} for name, path in files.items()], indent=1))
    elif model is not None:
        click.echo(files[model])
    else:
        click.echo(table(("model", "file"), [(name, str(path)) for name, path in files.items()]))
