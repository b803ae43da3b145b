"""`rayllm pull`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rayllm.cli.progress import progress
from rayllm.config import load_model
from rayllm.sources import fetch


@click.command("pull", help="Fetch a model's weights to this machine; the last line on stdout is their folder.")
@click.argument("model_file", type=click.Path(path_type=Path))
@click.option("--quiet", is_flag=True, help="Show no progress.")
def command(model_file: Path, quiet: bool) -> None:
    model = load_model(model_file)
    loading = model.model_loading_config
    show = progress(quiet or not sys.stderr.isatty())
    if loading.tokenizer_source is not None:
        fetch(loading.tokenizer_source, model.model_id, weights=False, progress=show)
    fetched = fetch(model.source, model.model_id, loading.allow_pickle_weights, progress=show)
    click.echo(str(fetched.folder))
