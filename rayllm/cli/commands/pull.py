"""`rayllm pull`"""

import sys
from collections.abc import Callable

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed

from rayllm import sources
from rayllm.config import ModelConfig, named_model
from rayllm.core.errors import ConfigError, RayLLMError, SourceError
from rayllm.lora import Adapter
from rayllm.sources import fetch

# vLLM's default.
_MAX_LORA_RANK = 16


@click.command(
    "pull",
    help="""Download the weights of MODEL to this machine, and optionally its adapters.

    MODEL is a model file, a hub id, a folder, s3://… or gs://…. The last line on stdout is the folder of its weights;
    those before it are the folders of the adapters.""",
)
@click.argument("model")
@click.option("--adapter", "adapters", multiple=True, metavar="NAME", help="Also this adapter; may be repeated.")
@click.option("--all-adapters", is_flag=True, help="Also every adapter of the model file's sources.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def command(model: str, adapters: tuple[str, ...], all_adapters: bool, quiet: bool) -> None:
    config = named_model(model)
    if (adapters or all_adapters) and config.lora_config is None:
        raise ConfigError(f"{model}: it has no lora_config, so it has no adapters.")

    def show() -> sources.Progress:
        return progress(quiet or not sys.stderr.isatty())

    loading = config.model_loading_config
    if loading.tokenizer_source is not None:
        fetch(loading.tokenizer_source, config.model_id, weights=False, progress=show())
    pickle, arguments = loading.allow_pickle_weights, config.engine_kwargs
    folder = fetch(config.source, config.model_id, pickle, progress=show(), arguments=arguments).folder
    try:
        if adapters or all_adapters:
            _fetch_adapters(config, adapters, all_adapters, show)
    finally:
        click.echo(str(folder))


def _fetch_adapters(
    config: ModelConfig, adapters: tuple[str, ...], all_adapters: bool, show: Callable[[], sources.Progress]
) -> None:
    """Fetch adapters, and print their folders; a SourceError names each failed adapter."""
    from rayllm.engine.adapters.setup import adapter_store

    store = adapter_store(config, int(config.engine_kwargs.get("max_lora_rank", _MAX_LORA_RANK)), show)
    wanted = [Adapter(config.model_id, name.removeprefix(f"{config.model_id}:")) for name in adapters]
    if all_adapters and config.lora_config:
        wanted += store.adapters()
        wanted += [Adapter(config.model_id, module.name) for module in config.lora_config.lora_modules]
    faults = []
    for adapter in dict.fromkeys(wanted):
        try:
            click.echo(str(store.fetch(adapter).folder))
        except RayLLMError as error:
            faults.append(error.message)
    if faults:
        raise SourceError("\n".join(faults))


def progress(quiet: bool) -> sources.Progress:
    """A bar on stderr, or log lines if `quiet`."""
    return sources.LoggedProgress() if quiet else _Bar()


class _Bar:
    """A bar per download, which stays visible after the download."""

    def __init__(self) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn()
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._task: TaskID

    def start(self, where: str, size: int) -> None:
        self._bars.start()
        self._task = self._bars.add_task(where, total=size)

    def advance(self, count: int) -> None:
        self._bars.advance(self._task, count)

    def finish(self) -> None:
        self._bars.stop()
