"""Processors: pipelines of stages between the user's preprocess and postprocess, and their builders."""

import uuid
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
import ray
from ray.data import Dataset

from rayllm.batch.config import Concurrency, ProcessorConfig
from rayllm.batch.execution.callback import prepare
from rayllm.batch.execution.checkpoints import SkipWritten
from rayllm.batch.execution.placement import EnginePlacement
from rayllm.batch.execution.progress import JobProgress
from rayllm.batch.processors.user_functions import Postprocess, Preprocess, UserFunction
from rayllm.batch.rows import Row
from rayllm.batch.stages.stage import Stage
from rayllm.core.errors import ConfigError

Config = TypeVar("Config", bound=ProcessorConfig)
Build = Callable[..., "Processor[Any]"]
Override = Callable[[str, Stage], None]


class Processor(Generic[Config]):
    """Callable that adds a dataset's results to its columns. Nothing runs until the dataset is consumed.

    The arguments are those of `build_llm_processor`. Raises ConfigError if one contradicts the configuration.
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
        progress = self.progress = ray.remote(JobProgress).options(num_cpus=0).remote()
        if self.config.checkpoint is not None:
            dataset = dataset.map_batches(SkipWritten(self.config.checkpoint), batch_format="pyarrow", batch_size=None)
        preprocess = Preprocess(self._preprocess, self.takes, column, stop_at_error)
        postprocess = Postprocess(
            self._postprocess,
            column,
            self.hidden,
            stop_at_error,
            self.results or {},
            self.example or {},
            self._output_schema,
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
        """Append a stage. Postprocess stays last.

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


def _overridden(config: Config, overrides: dict[str, Any]) -> Config:
    """`config` with the arguments of a call, which must agree with the configuration."""
    overrides = {name: value for name, value in overrides.items() if value is not None}
    own = {name: getattr(config, name) for name in config.model_fields_set}
    for name in overrides.keys() & own.keys():
        if own[name] != overrides[name]:
            raise ConfigError(f"{name}: the configuration says {own[name]!r}, the call {overrides[name]!r}; keep one.")
    return type(config)(**{**own, **overrides}) if overrides else config


class ProcessorBuilder:
    """Registry of builders, by the class of the configuration."""

    _registry: ClassVar[dict[type[ProcessorConfig], Build]] = {}

    @classmethod
    def register(cls, config_type: type[ProcessorConfig], builder: Build | None = None) -> Callable[[Any], Any]:
        """Register `builder` for configurations of `config_type`; a decorator if `builder` is left out.

        `builder` takes the configuration and the keyword arguments of `Processor`.

        Raises:
            ConfigError: another builder is already registered for that class.
        """
        if builder is None:
            return lambda function: cls.register(config_type, function)
        if cls._registry.get(config_type, builder) is not builder:
            raise ConfigError(f"{config_type.__name__}: a builder is registered already.")
        cls._registry[config_type] = builder
        return builder

    @classmethod
    def build(
        cls, config: ProcessorConfig, override_stage_config_fn: Override | None = None, **kwargs: Any
    ) -> Processor[Any]:
        """Build the processor for `config`.

        Args:
            config: the processor's configuration.
            override_stage_config_fn: called with each stage's name and the stage, which it may change in place.
            kwargs: passed on to `Processor`.

        Raises:
            ConfigError: the configuration is invalid, or no builder is registered for its class.
        """
        config_type = next((base for base in type(config).__mro__ if base in cls._registry), None)
        if config_type is None:
            registered = ", ".join(each.__name__ for each in cls._registry)
            raise ConfigError(f"{type(config).__name__}: no builder is registered; registered: {registered}.")
        processor = cls._registry[config_type](config, **kwargs)
        if override_stage_config_fn is not None:
            for name, stage in processor.stages.items():
                override_stage_config_fn(name, stage)
        return processor


def build_llm_processor(
    config: ProcessorConfig,
    preprocess: UserFunction | None = None,
    postprocess: UserFunction | None = None,
    accelerator_type: str | None = None,
    concurrency: Concurrency | None = None,
    override_stage_config_fn: Override | None = None,
    *,
    preprocess_fn: UserFunction | None = None,
    postprocess_fn: UserFunction | None = None,
    output_schema: pa.Schema | None = None,
) -> Processor[Any]:
    """Build a processor, a callable that maps a dataset to a dataset.

    Args:
        config: the processor's configuration.
        preprocess: maps an input row to the processor's input; `preprocess_fn` is an alias.
        postprocess: maps a row with all results to output columns; `postprocess_fn` is an alias.
        accelerator_type: Ray's name of the accelerator for each engine.
        concurrency: number of engines or workers, or (minimum, maximum).
        override_stage_config_fn: called with each stage's name and the stage, which it may change in place.
        output_schema: all columns that the job adds, with their types. By default the columns are inferred; for blocks
            in which every row failed, by a call of `postprocess` with made-up results.

    Raises:
        ConfigError: the configuration is invalid, or an argument contradicts another.
    """
    # A user's own builder may not accept this argument.
    schema = {} if output_schema is None else {"output_schema": output_schema}
    return ProcessorBuilder.build(
        config,
        override_stage_config_fn,
        preprocess_fn=_one("preprocess", preprocess, preprocess_fn),
        postprocess_fn=_one("postprocess", postprocess, postprocess_fn),
        accelerator_type=accelerator_type,
        concurrency=concurrency,
        **schema,
    )


def _one(name: str, function: UserFunction | None, alias: UserFunction | None) -> UserFunction | None:
    if function is not None and alias is not None:
        raise ConfigError(f"`{name}` and `{name}_fn` are aliases; give only one.")
    return function or alias
