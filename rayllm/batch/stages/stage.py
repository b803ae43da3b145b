"""A stage of a processor: a function on rows, and how Ray Data runs it."""

from __future__ import annotations

import logging
import os
import threading
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
import ray
from pydantic import BaseModel, ConfigDict, Field
from ray.data import ActorPoolStrategy, Dataset

from rayllm.batch.config import pool
from rayllm.batch.execution.progress import count
from rayllm.batch.rows import ERROR, BrokenWorkerError, Row, pack, unpack
from rayllm.errors import ConfigError, EngineError, RequestError

logger = logging.getLogger(__name__)


class Stage(BaseModel):
    """One step that all rows take.

    `fn` is a class. Made once in each process with `fn_constructor_kwargs`, it is called with rows and returns as many,
    in their order: a list of mappings with `batching`, else one mapping. A row that cannot be done gets its reason
    under `__error__`; an exception ends the job. `map_kwargs` are those of `Dataset.map_batches`, which runs it.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    fn: Callable[..., Any]
    fn_constructor_kwargs: dict[str, Any] = Field(default_factory=dict)
    batching: bool = True
    map_kwargs: dict[str, Any] = Field(default_factory=dict)

    def apply(self, dataset: Dataset, column: str, stop_at_error: bool, board: Any = None) -> Dataset:
        """`dataset` with the step taken.

        Args:
            dataset: rows with their mapping in `column`.
            column: the column.
            stop_at_error: end the job at the first row that fails.
            board: handle of the `JobProgress` that hears what the main stage has done; None where nobody listens.
        """
        from ray.data import TaskPoolStrategy

        options = {"batch_size": None, **self.map_kwargs}
        if (most := options.pop("concurrency", None)) is not None:
            options["compute"] = TaskPoolStrategy(size=most)
        return dataset.map_batches(self._call(column, stop_at_error), batch_format="pyarrow", **options)

    def _call(self, column: str, stop_at_error: bool) -> StageCall:
        return StageCall(self.fn, self.fn_constructor_kwargs, self.batching, column, stop_at_error)


class ActorStage(Stage):
    """A stage whose function is costly to make, or holds what others must not: it runs in actors of its own.

    Where the function raises BrokenWorkerError, the actor is replaced and its rows are done again, until that has
    happened `max_deaths` times to the stage.
    """

    max_deaths: int = 0

    def apply(self, dataset: Dataset, column: str, stop_at_error: bool, board: Any = None) -> Dataset:
        """As `Stage.apply`; `concurrency` in `map_kwargs` is the number of actors, or the least and the most."""
        options = dict(self.map_kwargs)
        least, most = pool(options.pop("concurrency", 1))
        calls = options.pop("max_concurrency", 1)
        strategy = ActorPoolStrategy(
            min_size=least,
            max_size=most,
            max_concurrent_calls_per_actor=calls,
            # One call waits while another is worked on.
            max_tasks_in_flight_per_actor=2 * calls,
            enable_true_multi_threading=True,
        )
        made = {"call": self._call(column, stop_at_error), "board": board, "max_deaths": self.max_deaths}
        with warnings.catch_warnings():
            # The one way to a placement group for each actor, until Ray 2.64 has another.
            warnings.filterwarnings("ignore", "`ray_remote_args_fn` is deprecated")
            return dataset.map_batches(
                ActorCall, fn_constructor_kwargs=made, compute=strategy, batch_format="pyarrow", **options
            )


class StageCall:
    """A stage's function on the mappings of a table."""

    # What this process has made so far: a task finds what an earlier one left.
    _made: ClassVar[OrderedDict[str, Any]] = OrderedDict()
    _KEPT = 16

    def __init__(
        self, fn: Callable[..., Any], kwargs: dict[str, Any], batching: bool, column: str, stop_at_error: bool
    ) -> None:
        self._fn = fn
        self._kwargs = kwargs
        self._batching = batching
        self._column = column
        self._stop_at_error = stop_at_error
        self._id = uuid.uuid4().hex

    def __call__(self, table: pa.Table) -> pa.Table:
        return self.put(table, self.answer(table))

    def put(self, table: pa.Table, rows: list[Row]) -> pa.Table:
        """`table` with these mappings."""
        return pack(table, self._column, rows)

    def answer(self, table: pa.Table) -> list[Row]:
        """What the function makes of the mappings in `table`; those of failed rows are left as they are."""
        rows = unpack(table, self._column)
        good = [index for index, row in enumerate(rows) if row.get(ERROR) is None]
        for index, row in zip(good, self._answers([rows[index] for index in good]), strict=True):
            rows[index] = row
            if self._stop_at_error and row.get(ERROR) is not None:
                raise RequestError(row[ERROR])
        return rows

    def make(self) -> Any:
        """The stage's function in this process."""
        made = StageCall._made
        if self._id not in made:
            made[self._id] = self._fn(**self._kwargs)
            while len(made) > StageCall._KEPT:
                made.popitem(last=False)
        return made[self._id]

    def close(self) -> None:
        """Have what this process made give back what it holds, if it holds anything."""
        close = getattr(StageCall._made.pop(self._id, None), "close", None)
        if close is not None:
            close()

    def _answers(self, rows: list[Row]) -> list[Row]:
        if not rows:
            return []
        function = self.make()
        answers: list[Row] = function(rows) if self._batching else [function(row) for row in rows]
        if len(answers) != len(rows):
            raise ConfigError(f"{self._fn.__name__} returned {len(answers)} rows for {len(rows)}.")
        return answers


class ActorCall:
    """A `StageCall` in an actor, ready when the actor is."""

    def __init__(self, call: StageCall, board: Any, max_deaths: int) -> None:
        self._call = call
        self._board = board
        self._max_deaths = max_deaths
        self._dying = threading.Lock()
        if ray.is_initialized():
            _end_with_the_node()
        call.make()

    def __call__(self, table: pa.Table) -> pa.Table:
        try:
            rows = self._call.answer(table)
        except BrokenWorkerError as error:
            self._die(error)
        self._board.add.remote(count(rows))
        return self._call.put(table, rows)

    def __del__(self) -> None:
        # Ray Data deletes it when the job has no more for this actor.
        self._call.close()

    def _die(self, error: BrokenWorkerError) -> NoReturn:
        """End this process, so that Ray starts another and has the rows done again there.

        Raises:
            EngineError: that has happened too often.
        """
        # Other batches find out at the same time; one of them is enough to tell.
        with self._dying:
            deaths = ray.get(self._board.died.remote())
            if deaths > self._max_deaths:
                raise EngineError(f"{error.message} It happened {deaths} times, so the job stops.")
            logger.error("%s This worker ends; its rows are done again by another.", error.message)
            os._exit(1)


def _end_with_the_node() -> None:
    """Have the kernel kill this process when Ray's own, which started it, is gone.

    An actor that hangs while it ends, as engines may, has left Ray by then: nobody else would end it.
    """
    from ray._private.utils import detect_fate_sharing_support_linux, set_kill_on_parent_death_linux

    if detect_fate_sharing_support_linux():
        set_kill_on_parent_death_linux()
