"""A stage of a processor: a function on rows, run by Ray Data in tasks or actors."""

import logging
import os
import threading
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import ray
from pydantic import BaseModel, ConfigDict, Field
from ray.data import ActorPoolStrategy, Dataset, TaskPoolStrategy

from rayllm.batch.config import pool_size
from rayllm.batch.execution.progress import count
from rayllm.batch.rows import ERROR, BrokenWorkerError, Row, pack, unpack
from rayllm.core.errors import ConfigError, EngineError, RequestError

logger = logging.getLogger(__name__)


class Stage(BaseModel):
    """One step of a processor, run in tasks.

    A row that fails gets the reason under `__error__`; an exception ends the job.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, use_attribute_docstrings=True)

    fn: Callable[..., Any]
    """Class, instantiated once per process. The instance is called with rows, and returns as many in the same order."""
    fn_constructor_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the class."""
    batching: bool = True
    """Whether an instance is called with a list of mappings; else with one mapping at a time."""
    map_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `Dataset.map_batches`."""

    def apply(self, dataset: Dataset, column: str, stop_at_error: bool, progress: Any = None) -> Dataset:
        """Apply the stage to a dataset.

        Args:
            progress: handle of the `JobProgress` actor that counts the main stage's rows.
        """
        options = {"batch_size": None, **self.map_kwargs}
        if (size := options.pop("concurrency", None)) is not None:
            options["compute"] = TaskPoolStrategy(size=size)
        return dataset.map_batches(self._call(column, stop_at_error), batch_format="pyarrow", **options)

    def _call(self, column: str, stop_at_error: bool) -> "StageCall":
        return StageCall(self.fn, self.fn_constructor_kwargs, self.batching, column, stop_at_error)


class ActorStage(Stage):
    """A stage that runs in actors, because its function is expensive to create or needs exclusive resources.

    If the function raises BrokenWorkerError, the actor is replaced and its rows are repeated.
    """

    max_deaths: int = 0
    """Most replacements of actors, before the job stops."""

    def apply(self, dataset: Dataset, column: str, stop_at_error: bool, progress: Any = None) -> Dataset:
        """As `Stage.apply`; `concurrency` in `map_kwargs` is the number of actors, or (minimum, maximum)."""
        options = dict(self.map_kwargs)
        minimum, maximum = pool_size(options.pop("concurrency", 1))
        calls = options.pop("max_concurrency", 1)
        strategy = ActorPoolStrategy(
            min_size=minimum,
            max_size=maximum,
            max_concurrent_calls_per_actor=calls,
            # For each running call, one is queued.
            max_tasks_in_flight_per_actor=2 * calls,
            enable_true_multi_threading=True,
        )
        kwargs = {"call": self._call(column, stop_at_error), "progress": progress, "max_deaths": self.max_deaths}
        with warnings.catch_warnings():
            # The only way to a placement group for each actor before Ray 2.64.
            warnings.filterwarnings("ignore", "`ray_remote_args_fn` is deprecated")
            return dataset.map_batches(
                ActorCall, fn_constructor_kwargs=kwargs, compute=strategy, batch_format="pyarrow", **options
            )


@dataclass(eq=False)
class StageCall:
    """A stage's function, applied to the data in a table."""

    # Instances of this process, by stage: tasks reuse the instances of earlier tasks.
    _instances: ClassVar[OrderedDict[str, Any]] = OrderedDict()
    _MAX_INSTANCES = 16

    fn: Callable[..., Any]
    kwargs: dict[str, Any]
    batching: bool
    column: str
    stop_at_error: bool

    def __post_init__(self) -> None:
        self._id = uuid.uuid4().hex

    def __call__(self, table: pa.Table) -> pa.Table:
        return pack(table, self.column, self.process(table))

    def process(self, table: pa.Table) -> list[Row]:
        """Apply the function to the data in `table`, except to failed rows."""
        rows = unpack(table, self.column)
        pending = [index for index, row in enumerate(rows) if row.get(ERROR) is None]
        for index, row in zip(pending, self._apply([rows[index] for index in pending]), strict=True):
            rows[index] = row
            if self.stop_at_error and row.get(ERROR) is not None:
                raise RequestError(row[ERROR])
        return rows

    def instance(self) -> Any:
        """This process's instance of the function, created on first use."""
        instances = StageCall._instances
        if self._id not in instances:
            instances[self._id] = self.fn(**self.kwargs)
            while len(instances) > StageCall._MAX_INSTANCES:
                instances.popitem(last=False)
        return instances[self._id]

    def close(self) -> None:
        """Close this process's instance, if that has a method `close`."""
        close = getattr(StageCall._instances.pop(self._id, None), "close", None)
        if close is not None:
            close()

    def _apply(self, rows: list[Row]) -> list[Row]:
        if not rows:
            return []
        function = self.instance()
        results: list[Row] = function(rows) if self.batching else [function(row) for row in rows]
        if len(results) != len(rows):
            raise ConfigError(f"{self.fn.__name__} returned {len(results)} rows for {len(rows)}.")
        return results


class ActorCall:
    """A `StageCall` in an actor, which creates its function when the actor starts."""

    def __init__(self, call: StageCall, progress: Any, max_deaths: int) -> None:
        self._call = call
        self._progress = progress
        self._max_deaths = max_deaths
        self._dying = threading.Lock()
        if ray.is_initialized():
            _die_with_raylet()
        call.instance()

    def __call__(self, table: pa.Table) -> pa.Table:
        try:
            rows = self._call.process(table)
        except BrokenWorkerError as error:
            self._die(error)
        self._progress.add.remote(count(rows))
        return pack(table, self._call.column, rows)

    def __del__(self) -> None:
        # Ray Data deletes the object when the actor is no longer needed.
        self._call.close()

    def _die(self, error: BrokenWorkerError) -> NoReturn:
        """Exit this process: Ray starts another, which repeats the rows. Raises EngineError after too many exits."""
        # Several batches fail at the same time; only the first counts the death.
        with self._dying:
            deaths = ray.get(self._progress.add_death.remote())
            if deaths > self._max_deaths:
                raise EngineError(f"{error.message} It happened {deaths} times, so the job stops.")
            logger.error("%s This worker exits; another repeats its rows.", error.message)
            os._exit(1)


def _die_with_raylet() -> None:
    """Ask the kernel to kill this process when its raylet dies.

    An actor that hangs on exit, as engines may, has already left Ray, so nothing else would end it.
    """
    from ray._private.utils import detect_fate_sharing_support_linux, set_kill_on_parent_death_linux

    if detect_fate_sharing_support_linux():
        set_kill_on_parent_death_linux()
