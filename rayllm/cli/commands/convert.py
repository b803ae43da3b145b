"""`rayllm convert`"""

import json
from pathlib import Path

import click


@click.command(
    "convert",
    help="""Convert FILES of RayLLM 1 and of ray.serve.llm: models, serve configs and the files that they list,
    KubeRay's RayServices, and folders of these.

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
        reports = convert_files(files, output)
    except FolderNeededError as error:
        raise click.UsageError(f"{error.message}.") from None
    write_files({report.to: report.text for report in reports if report.to}, force)
    if as_json:
        converted = [
            {
                "from": str(report.source),
                "form": str(report.form),
                "to": str(report.to),
                "notes": [{"key": change.key, "kind": change.kind, "text": change.text} for change in report.changes],
            }
            for report in reports
        ]
        click.echo(json.dumps({"files": converted}, indent=1))
        return
    for report in reports:
        if report.is_as_it_was:
            click.echo(f"{report.source}: has the current format, and is unchanged", err=True)
        for change in report.changes:
            click.echo(f"{report.source}: {change.key}: {change.text}", err=True)
    for report in reports:
        click.echo(report.text if report.to is None else f"{report.to}\n", nl=False)
