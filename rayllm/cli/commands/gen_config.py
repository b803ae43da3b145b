"""`rayllm gen-config`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_FOLDER = Path("model_config")
_COUNT = click.IntRange(min=1)


@click.command(
    "gen-config",
    help="""Write the files that serve a model: its YAML, and a serve config with it.

    Asks what no option says. What can be worked out from the model's config.json and the headers of its weights is
    offered as the default, and taken with --non-interactive.""",
)
@click.option("--non-interactive", is_flag=True, help="Ask nothing.")
@click.option("--model-id", help="The model: a hub id, s3://…, gs://…, a folder; or its name, with --model-source.")
@click.option("--model-source", help="Where its weights are: a hub id, s3://…, gs://… or a folder.")
@click.option("--accelerator-type", "accelerator", help="GPU, such as A100-80G; `none` for any, and for CPUs.")
@click.option("--tensor-parallelism", "tensor_parallel", type=_COUNT, help="GPUs that share each layer.")
@click.option("--pipeline-parallelism", "pipeline_parallel", type=_COUNT, help="Groups of layers.")
@click.option("--max-model-len", "context", type=_COUNT, help="Tokens of prompt and answer together.")
@click.option("--max-num-seqs", "sequences", type=_COUNT, help="Requests that are worked on at once.")
@click.option("--enable-lora/--disable-lora", default=None, help="Serve LoRA adapters.")
@click.option("--lora-path", help="Their folder: s3://…, gs://…, hf://organisation or a path.")
@click.option("--max-loras", "slots", type=_COUNT, help="Adapters in the engine at once.  [16]")
@click.option("--max-lora-rank", "rank", type=_COUNT, help="Their largest rank.  [32]")
@click.option("--min-replicas", type=click.IntRange(min=0), help="Fewest replicas; 0 lets the model sleep.  [1]")
@click.option("--max-replicas", type=_COUNT, help="Most replicas.  [4]")
@click.option("--target-ongoing-requests", "target", type=_COUNT, help="Requests each replica should have in hand.")
@click.option("--output-dir", type=click.Path(path_type=Path), default=".", help="Where the files go.  [.]")
@click.option("--force", is_flag=True, help="Write over files that are there.")
def command(non_interactive: bool, output_dir: Path, force: bool, **given: Any) -> None:
    from rayllm.authoring.rendering import model_config, render_model, render_serve_config
    from rayllm.cli.authoring.interview import Interview, Options
    from rayllm.cli.terminal.output_files import write_files
    from rayllm.cli.terminal.user_input import UserInput
    from rayllm.config.named import file_name

    options = Options(**given)
    _check(options)
    interview = Interview(options, asker := UserInput(not non_interactive))
    profile = interview.profile()
    answers, room = interview.answers(profile)
    name = file_name(profile.model.model_id)
    model_file, serve_file = _FOLDER / name, output_dir / f"serve_{name}"
    texts = {
        output_dir / model_file: render_model(profile, answers, room),
        serve_file: render_serve_config(profile, model_file),
    }
    model_config(profile, answers)  # what the service would refuse is not written
    write_files(texts, force or _may_replace(texts, asker))
    click.echo(f"Wrote {output_dir / model_file} and {serve_file}. Serve it with:", err=True)
    click.echo(f"rayllm run {serve_file}")


def _check(options: Any) -> None:
    """Refuse options that contradict each other.

    Raises:
        click.UsageError: the first two that do.
    """
    if options.enable_lora:
        return
    for name, value in (
        ("--lora-path", options.lora_path),
        ("--max-loras", options.slots),
        ("--max-lora-rank", options.rank),
    ):
        if value is not None:
            raise click.UsageError(f"{name} is for adapters: add --enable-lora, or leave it out.")


def _may_replace(texts: dict[Path, str], asker: Any) -> bool:
    there = [str(path) for path in texts if path.exists()]
    return bool(there) and bool(asker.agrees(f"{', '.join(there)}: already there. Write anew?"))
