"""A pipeline of stages between the user's preprocess and postprocess."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from math import ceil
from typing import Any, Generic, TypeVar

import pyarrow as pa
from ray.data import Dataset

from rayllm.batch.config import Concurrency, ProcessorConfig
from rayllm.batch.execution.callback import prepare, start_progress
from rayllm.batch.execution.checkpoints import SkipWritten
from rayllm.batch.execution.placement import EnginePlacement
from rayllm.batch.processors.user_functions import Postprocess, Preprocess, UserFunction
from rayllm.batch.rows import Row
from rayllm.batch.stages.stage import Stage
from rayllm.config import ModelConfig
from rayllm.config.model import DEFAULT_MAX_NUM_SEQS
from rayllm.errors import ConfigError

Config = TypeVar("Config", bound=ProcessorConfig)


class Processor(Generic[Config]):
    """Callable that adds a dataset's results to its columns. Nothing runs until the dataset is consumed.

    Args:
        config: the processor's configuration.
        preprocess_fn: maps an input row to what the first stage takes; None takes the row's own columns.
        postprocess_fn: maps a row with all results to output columns; None takes all results.
        accelerator_type: overrides the configuration's.
        concurrency: overrides the configuration's.
        output_schema: the columns that the job adds, and no other, with their types; None infers them.

    Raises:
        ConfigError: an argument contradicts the configuration.
    """

    name: str = "rows"
    """Label of the progress bar."""
    data_column: str = "__data"
    """Column that carries the stages' data between them."""
    takes: Collection[str] | None = None
    """Keys that preprocess may return; None allows any."""
    hidden: Collection[str] = ()
    """Keys of the stages' data that are not results."""
    results: Row | None = None
    """Made-up values of the results that every row has, or null."""
    example: Row | None = None
    """Made-up values of further results that a row may have."""
    placement: EnginePlacement | None = None
    """Resources of each engine; None if the processor runs none."""

    def __init__(
        self,
        config: Config,
        preprocess_fn: UserFunction | None = None,
        postprocess_fn: UserFunction | None = None,
        accelerator_type: str | None = None,
        concurrency: Concurrency | None = None,
        output_schema: pa.Schema | None = None,
    ) -> None:
        self.config: Config = _overridden(config, {"accelerator_type": accelerator_type, "concurrency": concurrency})
        self.stages: dict[str, Stage] = {}
        self._preprocess = preprocess_fn
        self._postprocess = postprocess_fn
        self._output_schema = output_schema
        self.execution_id = uuid.uuid4().hex
        """Identifies this processor's executions, for `rayllm.batch.execution.callback.stop`."""
        self.progress: Any = None
        """Handle of the `JobProgress` actor, once the processor was called."""
        self._arrangements: dict[str, Callable[[Dataset], Dataset]] = {}

    def __call__(self, dataset: Dataset) -> Dataset:
        """Add the results to `dataset`, lazily and streaming.

        Raises:
            ClusterError: the cluster can never hold an engine.
        """
        if self.placement is not None:
            self.placement.check()
        stop_at_error = self.config.on_error == "raise"
        column = self.data_column
        progress = self.progress = start_progress()
        if self.config.checkpoint is not None:
            dataset = dataset.map_batches(SkipWritten(self.config.checkpoint), batch_format="pyarrow", batch_size=None)
        preprocess = Preprocess(self._preprocess, self.takes, column, stop_at_error)
        postprocess = Postprocess(
            self._postprocess, column, self.hidden, stop_at_error, self.results, self.example, self._output_schema
        )
        output = dataset.map_batches(preprocess, batch_format="pyarrow", batch_size=None)
        for name, stage in self.stages.items():
            if name in self._arrangements:
                output = self._arrangements[name](output)
            output = stage.apply(output, column, stop_at_error, progress)
        output = output.map_batches(postprocess, batch_format="pyarrow", batch_size=None)
        return prepare(output, self.config, self.name, progress, self.release, self.execution_id)

    def release(self) -> None:
        """Release the resources of an execution that has ended."""
        if self.placement is not None:
            self.placement.release()

    def append_stage(self, name: str, stage: Stage) -> None:
        """Append a stage, before postprocess.

        Raises:
            ConfigError: the name is taken.
        """
        if name in self.stages:
            raise ConfigError(f"the processor already has a stage `{name}`; choose another name.")
        self.stages[name] = stage

    def arrange_before(self, name: str, arrange: Callable[[Dataset], Dataset]) -> None:
        """Reorder or repartition the dataset with `arrange` before the stage `name`."""
        self._arrangements[name] = arrange

    def in_batches(self, dataset: Dataset) -> Dataset:
        """Repartition to one batch a block: many run at once, and a failure repeats little."""
        return dataset.repartition(target_num_rows_per_block=self.config.batch_size)

    def list_stage_names(self) -> list[str]:
        """Names of the stages, in order."""
        return list(self.stages)

    def get_stage_by_name(self, name: str) -> Stage:
        """Look a stage up.

        Raises:
            ConfigError: there is no such stage; the message lists the names.
        """
        if name not in self.stages:
            raise ConfigError(f"the processor has no stage `{name}`; it has {', '.join(self.stages)}.")
        return self.stages[name]


def engine_options(config: Any, model: ModelConfig, placement: EnginePlacement) -> dict[str, Any]:
    """Arguments of `Dataset.map_batches` for a stage that runs an engine in each worker."""
    sequences = int(model.engine_kwargs.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS)) * model.pipeline_parallel_size
    return {**placement.map_kwargs(), **_actor_options(config, config.max_pending_requests or ceil(1.1 * sequences))}


def client_options(config: ProcessorConfig, max_concurrent: int) -> dict[str, Any]:
    """Arguments of `Dataset.map_batches` for a stage that sends requests elsewhere."""
    # It mostly waits; even a share of a CPU could be the one that a task between stages lacks.
    return {"num_cpus": 0, **_actor_options(config, max_concurrent)}


def _actor_options(config: ProcessorConfig, max_concurrent: int) -> dict[str, Any]:
    return {
        "concurrency": config.concurrency,
        "batch_size": config.batch_size,
        # Enough batches to keep `max_concurrent` rows busy while others wait for their slowest row.
        "max_concurrency": 2 * ceil(max_concurrent / config.batch_size) + 2,
    }


def _overridden(config: Config, overrides: dict[str, Any]) -> Config:
    """`config` with the arguments of a call, which must not contradict it."""
    overrides = {name: value for name, value in overrides.items() if value is not None}
    own = {name: getattr(config, name) for name in config.model_fields_set}
    for name in overrides.keys() & own.keys():
        if own[name] != overrides[name]:
            raise ConfigError(f"{name}: the configuration says {own[name]!r}, the call {overrides[name]!r}; keep one.")
    return type(config)(**{**own, **overrides}) if overrides else config
