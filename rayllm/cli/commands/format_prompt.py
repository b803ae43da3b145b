"""`rayllm format-prompt`"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from rayllm.config import LocalSource, ModelConfig, load_model
from rayllm.core.errors import ConfigError
from rayllm.prompt import PromptError, compile_template, render


@click.command("format-prompt", help="Print the exact prompt that a chat transcript is rendered to.")
@click.option("--model", "model_file", required=True, type=click.Path(path_type=Path), help="The model's YAML file.")
@click.option(
    "--message-file",
    required=True,
    type=click.Path(path_type=Path),
    help='JSONL: one message per line, or one `{"messages": […]}`; `-` reads standard input.',
)
def command(model_file: Path, message_file: Path) -> None:
    model = load_model(model_file)
    request = _transcript(message_file)
    template = _template(model, model_file)
    try:
        prompt = render(template, request["messages"], tools=request.get("tools"))
    except PromptError as error:
        raise ConfigError(f"{message_file}: {error}") from None
    # No newline: the output is exactly the prompt.
    sys.stdout.write(prompt)
    sys.stdout.flush()


def _template(model: ModelConfig, model_file: Path) -> str:
    prompt_format = model.generation_config.prompt_format
    if prompt_format is None:
        raise ConfigError(
            f"{model_file}: generation_config.prompt_format: is missing; prompts are rendered with the model's own "
            "chat template, which only the engine has."
        )
    if prompt_format.bos:
        return compile_template(prompt_format)
    if isinstance(model.source, LocalSource) and Path(model.source.path).is_dir():
        from transformers import AutoTokenizer

        # What the tokenizer itself adds.
        tokenizer = AutoTokenizer.from_pretrained(model.source.path)
        adds_bos = tokenizer.bos_token_id is not None and tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]
        return compile_template(prompt_format, bos=str(tokenizer.bos_token) if adds_bos else "")
    click.echo("note: `bos` is empty, so the engine also prepends the tokenizer's own BOS, if any.", err=True)
    return compile_template(prompt_format)


def _transcript(path: Path) -> dict[str, Any]:
    """Read a file as a request with `messages` and, optionally, `tools`."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}.") from None
    try:
        # One value over many lines, or one on each.
        entries = [json.loads(text)]
    except ValueError:
        entries = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                entries += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise ConfigError(f"{path}: line {number} is not valid JSON: {error}.") from None
    if len(entries) == 1 and isinstance(entries[0], list):
        entries = entries[0]
    if len(entries) == 1 and isinstance(entries[0], dict) and isinstance(entries[0].get("messages"), list):
        return dict(entries[0])
    if not entries:
        raise ConfigError(f"{path}: holds no messages.")
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or "role" not in entry:
            raise ConfigError(f"{path}: message {number} must be an object with `role` and `content`.")
    return {"messages": entries}
