"""From a configuration to its processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rayllm.batch.config import Concurrency, ProcessorConfig
from rayllm.batch.processors.processor import Processor
from rayllm.batch.processors.user_functions import UserFunction
from rayllm.batch.stages.stage import Stage
from rayllm.errors import ConfigError

Build = Callable[..., Processor[Any]]
Override = Callable[[str, Stage], None]


class ProcessorBuilder:
    """Knows how each kind of configuration becomes a processor."""

    _registry: ClassVar[dict[type[ProcessorConfig], Build]] = {}

    @classmethod
    def register(cls, config_type: type[ProcessorConfig], builder: Build | None = None) -> Callable[[Any], Any]:
        """Have `builder` build for configurations of `config_type`: a call, or a decorator where it is left out.

        `builder` takes the configuration and the keyword arguments of `Processor`.

        Raises:
            ConfigError: another builder is registered for it.
        """
        if builder is None:
            return lambda found: cls.register(config_type, found)
        if cls._registry.get(config_type, builder) is not builder:
            raise ConfigError(f"{config_type.__name__}: a builder is registered already.")
        cls._registry[config_type] = builder
        return builder

    @classmethod
    def build(
        cls, config: ProcessorConfig, override_stage_config_fn: Override | None = None, **kwargs: Any
    ) -> Processor[Any]:
        """The processor for `config`.

        Args:
            config: what it does.
            override_stage_config_fn: is given each stage's name and the stage, to change it in place.
            kwargs: those of `Processor`.

        Raises:
            ConfigError: nobody builds for such a configuration, or it is wrong.
        """
        kind = next((kind for kind in type(config).__mro__ if kind in cls._registry), None)
        if kind is None:
            known = ", ".join(found.__name__ for found in cls._registry)
            raise ConfigError(f"{type(config).__name__}: no builder is registered; known are {known}.")
        processor = cls._registry[kind](config, **kwargs)
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
) -> Processor[Any]:
    """A processor: a callable from dataset to dataset.

    Args:
        config: what it does.
        preprocess: from a row of the input to what the processor takes; `preprocess_fn` is the same.
        postprocess: from a row with all results to columns of the output; `postprocess_fn` is the same.
        accelerator_type: Ray's name of the accelerator that each engine runs on.
        concurrency: engines, or workers, at once; or the least and the most.
        override_stage_config_fn: is given each stage's name and the stage, to change it in place.

    Raises:
        ConfigError: the configuration is wrong, or something is said twice.
    """
    return ProcessorBuilder.build(
        config,
        override_stage_config_fn,
        preprocess_fn=_one("preprocess", preprocess, preprocess_fn),
        postprocess_fn=_one("postprocess", postprocess, postprocess_fn),
        accelerator_type=accelerator_type,
        concurrency=concurrency,
    )


def _one(name: str, function: UserFunction | None, same: UserFunction | None) -> UserFunction | None:
    if function is not None and same is not None:
        raise ConfigError(f"`{name}` and `{name}_fn` are the same; give one.")
    return function or same
