"""A processor: stages in their order, between the user's own functions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from ray.data import Dataset

from rayllm.batch.config import Concurrency, ProcessorConfig
from rayllm.batch.execution.callback import open_board, prepare
from rayllm.batch.execution.checkpoints import Unwritten
from rayllm.batch.processors.user_functions import Postprocess, Preprocess, UserFunction
from rayllm.batch.stages.stage import Stage
from rayllm.errors import ConfigError

Config = TypeVar("Config", bound=ProcessorConfig)


class Processor(Generic[Config]):
    """Takes a dataset and gives one with the results beside its columns. Nothing runs until the dataset is used.

    Args:
        config: what it does.
        preprocess_fn: from a row of the input to what the first stage takes; None takes the row's own columns.
        postprocess_fn: from a row with all results to the columns of the output; None takes all results.
        accelerator_type: over the configuration's.
        concurrency: over the configuration's.

    Raises:
        ConfigError: an argument contradicts the configuration.
    """

    name: str = "rows"
    """What the rows go through, for the display."""
    data_column: str = "__data"
    """Name of the column that the stages' work is in while it goes on."""
    takes: Collection[str] | None = None
    """Keys that preprocess may return; None is any."""
    hidden: Collection[str] = ()
    """Keys of the stages' work that are no results."""

    def __init__(
        self,
        config: Config,
        preprocess_fn: UserFunction | None = None,
        postprocess_fn: UserFunction | None = None,
        accelerator_type: str | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        self.config: Config = _with(config, {"accelerator_type": accelerator_type, "concurrency": concurrency})
        self.stages: dict[str, Stage] = {}
        self._preprocess = preprocess_fn
        self._postprocess = postprocess_fn
        self.execution = uuid.uuid4().hex
        """Names what this processor does, for `rayllm.batch.execution.callback.stop`."""
        self.board: Any = None
        """Handle of the board that hears how far it is, once it was called."""
        self._between: dict[str, Callable[[Dataset], Dataset]] = {}

    def __call__(self, dataset: Dataset) -> Dataset:
        """`dataset` with the results. It streams: nothing is ever held whole."""
        stop = self.config.on_error == "raise"
        column = self.data_column
        board = self.board = open_board()
        if self.config.checkpoint is not None:
            dataset = dataset.map_batches(Unwritten(self.config.checkpoint), batch_format="pyarrow", batch_size=None)
        before = Preprocess(self._preprocess, self.takes, column, stop)
        after = Postprocess(self._postprocess, column, self.hidden, stop)
        done = dataset.map_batches(before, batch_format="pyarrow", batch_size=None)
        for name, stage in self.stages.items():
            if name in self._between:
                done = self._between[name](done)
            done = stage.apply(done, column, stop, board)
        done = done.map_batches(after, batch_format="pyarrow", batch_size=None)
        return prepare(done, self.config, self.name, board, self.leave, self.execution)

    def leave(self) -> None:
        """Give back what the processor took for an execution, which has ended."""

    def append_stage(self, name: str, stage: Stage) -> None:
        """Append a stage, before postprocess.

        Raises:
            ConfigError: there is one of that name.
        """
        if name in self.stages:
            raise ConfigError(f"the processor has a stage `{name}` already; give this one another name.")
        self.stages[name] = stage

    def arrange_before(self, name: str, arrange: Callable[[Dataset], Dataset]) -> None:
        """Have the dataset go through `arrange` before the stage `name`: into other blocks, or another order."""
        self._between[name] = arrange

    def list_stage_names(self) -> list[str]:
        """The names of the stages, in order."""
        return list(self.stages)

    def get_stage_by_name(self, name: str) -> Stage:
        """The stage of that name.

        Raises:
            ValueError: there is none; the message names those there are.
        """
        if name not in self.stages:
            raise ConfigError(f"the processor has no stage `{name}`; it has {', '.join(self.stages)}.")
        return self.stages[name]


def _with(config: Config, said: dict[str, Any]) -> Config:
    """`config` with what a call says besides."""
    said = {name: value for name, value in said.items() if value is not None}
    own = {name: getattr(config, name) for name in config.model_fields_set}
    for name in said.keys() & own.keys():
        if own[name] != said[name]:
            raise ConfigError(f"{name}: the configuration says {own[name]!r}, the call {said[name]!r}; keep one.")
    return type(config)(**{**own, **said}) if said else config
