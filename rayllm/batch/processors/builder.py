"""Build a processor from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from rayllm.batch.config import Concurrency, ProcessorConfig
from rayllm.batch.processors.processor import Processor
from rayllm.batch.processors.user_functions import UserFunction
from rayllm.batch.stages.stage import Stage
from rayllm.errors import ConfigError

Build = Callable[..., Processor[Any]]
Override = Callable[[str, Stage], None]


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
        preprocess: maps an input row to what the processor takes; `preprocess_fn` is an alias.
        postprocess: maps a row with all results to output columns; `postprocess_fn` is an alias.
        accelerator_type: Ray's name of the accelerator for each engine.
        concurrency: number of engines or workers, or (minimum, maximum).
        override_stage_config_fn: called with each stage's name and the stage, which it may change in place.
        output_schema: the columns that the job adds, and no other, with their types. Without it, they are inferred:
            for blocks in which every row failed, by a call of `postprocess` with made-up results.

    Raises:
        ConfigError: the configuration is invalid, or an argument contradicts another.
    """
    # Builders of users' own may not know it.
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
