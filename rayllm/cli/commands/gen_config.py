"""`rayllm gen-config`"""

from pathlib import Path
from typing import Any

import click

from rayllm.cli.removed import removed_options

_FOLDER = Path("model_config")
_COUNT = click.IntRange(min=1)


@click.command(
    "gen-config",
    help="""Write the files to serve a model: its YAML and a serve config.

    Prompts for what no option sets. Defaults are computed from the model's config.json and the headers of its weights;
    --non-interactive takes them.""",
)
@click.option("--non-interactive", is_flag=True, help="Do not prompt.")
@click.option("--model-id", help="The model: a hub id, s3://…, gs://…, a folder; or its name, with --model-source.")
@click.option("--model-source", help="Source of its weights: a hub id, s3://…, gs://… or a folder.")
@click.option("--accelerator-type", "accelerator", help="GPU, such as A100-80G; `none` for any, and for CPUs.")
@click.option("--tensor-parallelism", "tensor_parallel", type=_COUNT, help="GPUs that share each layer.")
@click.option("--pipeline-parallelism", "pipeline_parallel", type=_COUNT, help="Groups of layers.")
@click.option("--max-model-len", "context", type=_COUNT, help="Tokens of prompt and completion together.")
@click.option("--max-num-seqs", "sequences", type=_COUNT, help="Sequences that the engine runs at once.")
@click.option("--enable-lora/--disable-lora", default=None, help="Serve LoRA adapters.")
@click.option("--lora-path", help="Their folder: s3://…, gs://…, hf://organisation or a path.")
@click.option("--max-loras", "slots", type=_COUNT, help="Adapters in the engine at once.  [16]")
@click.option("--max-lora-rank", "rank", type=_COUNT, help="Their largest rank.  [32]")
@click.option("--min-replicas", type=click.IntRange(min=0), help="Fewest replicas; 0 scales to zero.  [1]")
@click.option("--max-replicas", type=_COUNT, help="Most replicas.  [4]")
@click.option("--target-ongoing-requests", "target", type=_COUNT, help="Ongoing requests per replica.")
@click.option("--output-dir", type=click.Path(path_type=Path), default=".", help="Folder for the files.  [.]")
@click.option("--force", is_flag=True, help="Replace existing files.")
@removed_options(
    *("--recipe", "--variant", "--feature", "--without-feature"),
    hint="--model-id names the model; `rayllm catalog` lists model files that have the settings of vLLM's recipes.",
)
def command(non_interactive: bool, output_dir: Path, force: bool, **arguments: Any) -> None:
    from rayllm.cli.shared.interview import Interview, Options
    from rayllm.cli.shared.terminal import write_files
    from rayllm.config.load import file_name
    from rayllm.plan.authoring.rendering import model_config, render_model, render_serve_config

    options = Options(**arguments)
    adapters = {"--lora-path": options.lora_path, "--max-loras": options.slots, "--max-lora-rank": options.rank}
    for option, value in adapters.items():
        if value is not None and not options.enable_lora:
            raise click.UsageError(f"{option} is for adapters: add --enable-lora, or leave it out.")
    interview = Interview(options, is_interactive=not non_interactive)
    profile = interview.profile()
    answers, fit = interview.answers(profile)
    name = file_name(profile.model.model_id)
    model_file, serve_file = _FOLDER / name, output_dir / f"serve_{name}"
    texts = {
        output_dir / model_file: render_model(profile, answers, fit),
        serve_file: render_serve_config(profile, model_file),
    }
    model_config(profile, answers)  # raises if the service would refuse it
    existing = ", ".join(str(path) for path in texts if path.exists())
    if existing and not force and not non_interactive:
        force = click.confirm(f"{existing}: already exists. Replace?", default=False, err=True)
    write_files(texts, force)
    click.echo(f"Wrote {output_dir / model_file} and {serve_file}. Serve it with:", err=True)
    click.echo(f"rayllm run {serve_file}")
