"""`rayllm build`"""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from rayllm.cli.application import IMPORT_PATH, inlined
from rayllm.config import load_serve_file
from rayllm.config.yaml import read_yaml


@click.command(
    "build",
    help="Print the serve config FILE with every model inlined, for clusters that do not share this machine's files.",
)
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    raw = read_yaml(file)
    applications = [
        inlined(application, file.resolve().parent) if application.get("import_path") == IMPORT_PATH else application
        for application in load_serve_file(file)
    ]
    built = {**raw, "applications": applications}
    click.echo(yaml.dump(built, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000), nl=False)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines on one line with escapes, as prompt formats are written."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None),
)
