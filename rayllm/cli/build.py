"""`rayllm build`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from rayllm.config import load_app, load_serve_file
from rayllm.config.templates import read_template
from rayllm.config.yaml import read_yaml


@click.command(
    "build",
    help="Print the serve config FILE with every model inlined, for clusters that do not share this machine's files.",
)
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    raw = read_yaml(file)
    applications = [
        _inlined(application, file) if application.get("import_path") == "rayllm:app" else application
        for application in load_serve_file(file)
    ]
    built = {**raw, "applications": applications}
    click.echo(yaml.dump(built, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000), nl=False)


def _inlined(application: dict[str, Any], file: Path) -> dict[str, Any]:
    """The application with each model as a mapping. References to secrets stay references."""
    args = application.get("args") or {}
    config = load_app(args, file.resolve().parent)
    # What a file leaves out stays out, so that the defaults are those of the RayLLM that serves it.
    models = [model.model_dump(mode="json", exclude_unset=True) for model in config.models]
    for model in models:
        for holder in (model, model.get("tool_calling") or {}):
            if "chat_template" in holder:
                holder["chat_template"] = read_template(holder["chat_template"])
    return {**application, "args": {**args, "llm_configs": models}}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines on one line with escapes, as prompt formats are written."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None),
)
