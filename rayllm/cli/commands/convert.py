"""`rayllm convert`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rayllm.deploy.conversion import Conversion, Report, Target


@click.command(
    "convert",
    help="""Convert FILES of RayLLM 1 and of ray.serve.llm: models, serve configs and the files that they list, and
    folders of these.

    One file goes to standard output, or to --output. Several go into the folder --output: models below `model_config`,
    serve configs beside it. Every changed or dropped key is reported. Nothing is written unless everything loads.""",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file (.yaml, .yml) or a folder.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print the changes as JSON; needs --output.")
def command(files: tuple[Path, ...], output: Path | None, force: bool, as_json: bool) -> None:
    from rayllm.cli.shared.terminal import write_files
    from rayllm.deploy.conversion import FolderNeededError, convert_files

    if as_json and output is None:
        raise click.UsageError("--json reports the files written; add --output.")
    try:
        conversion = convert_files(files, _target(output))
    except FolderNeededError as error:
        raise click.UsageError(f"{error.message}.") from None
    write_files({path: text for path, text in conversion.texts.items() if path}, force)
    if as_json:
        click.echo(json.dumps(_as_json(conversion), indent=1))
        return
    for report in conversion.reports:
        _print(report)
    click.echo(conversion.texts.get(None, ""), nl=False)
    for path in filter(None, conversion.texts):
        click.echo(str(path))


def _target(output: Path | None) -> Target:
    from rayllm.deploy.conversion import Target

    if output is None:
        return Target()
    is_file = output.suffix in (".yaml", ".yml") and not output.is_dir()
    return Target(file=output) if is_file else Target(folder=output)


def _print(report: Report) -> None:
    if report.is_as_it_was:
        click.echo(f"{report.source}: has the current format, and is unchanged", err=True)
    for change in report.changes:
        click.echo(f"{report.source}: {change.key}: {change.text}", err=True)


def _as_json(conversion: Conversion) -> dict[str, Any]:
    return {
        "files": [
            {
                "from": str(report.source),
                "form": str(report.form),
                "to": str(report.to),
                "notes": [{"key": change.key, "kind": change.kind, "text": change.text} for change in report.changes],
            }
            for report in conversion.reports
        ]
    }
