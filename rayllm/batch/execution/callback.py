"""What goes with the execution of a dataset: its order, its checkpoints, how far it is, and what is given back.

Ray Data calls what it is given here; nothing of that is known elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import ray
from ray.data import Dataset
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.actor_pool_map_operator import ActorPoolMapOperator
from ray.exceptions import RayError

from rayllm.batch.config import ProcessorConfig
from rayllm.batch.execution.checkpoints import keep_checkpoints
from rayllm.batch.execution.progress import Display, JobProgress, Totals
from rayllm.cluster import nodes
from rayllm.errors import ClusterError, RayLLMError
from rayllm.settings import settings

_PERIOD_S = 0.5


class StoppedError(RayLLMError):
    """The execution was stopped from outside."""


# Names of executions that are to stop. Ray Data takes copies of what it is given, so they are known by name.
_stopped: set[str] = set()


def stop(execution: str) -> None:
    """Have the execution of that name end soon, with StoppedError."""
    _stopped.add(execution)


def open_board() -> Any:
    """Handle of a board for the workers of one processor."""
    return ray.remote(JobProgress).options(num_cpus=0).remote()


def prepare(
    dataset: Dataset, config: ProcessorConfig, name: str, board: Any, leave: Callable[[], None], execution: str
) -> Dataset:
    """`dataset` with an execution that goes as `config` says.

    Args:
        dataset: the output of a processor.
        config: the processor's.
        name: what rows go through, for the display.
        board: from `open_board`.
        leave: called when the execution has ended.
        execution: names it for `stop`.

    Raises:
        ConfigError: there can be no checkpoints where the configuration wants them.
    """
    # Datasets share the context of what they were made of; what is said here is for this one, and what comes of it.
    dataset = Dataset.copy(dataset, _deep_copy=True)
    context = dataset.context
    if config.preserve_order:
        context.execution_options.preserve_order = True
    if config.checkpoint is not None:
        keep_checkpoints(dataset, config.checkpoint)
    if config.show_progress:
        context.enable_progress_bars = False
    total = _known_count(dataset)
    context.custom_execution_callback_classes = [
        *context.custom_execution_callback_classes,
        # Ray Data makes one for each execution.
        partial(_Execution, (name, total) if config.show_progress else None, board, leave, execution),
    ]
    return dataset


def _known_count(dataset: Dataset) -> int | None:
    """The number of rows, where it can be told without running anything."""
    metadata = dataset._logical_plan.dag
    while metadata.input_dependencies:
        metadata = metadata.input_dependencies[0]
    known: int | None = metadata.infer_metadata().num_rows
    return known


def _check_room(executor: Any) -> None:
    """Refuse an execution whose actors leave no CPU for the tasks between them: it would wait for ever.

    Raises:
        ClusterError: says what to do.
    """
    if settings().resource_check == "never" or nodes.may_grow():
        return
    pools = [operator for operator in executor._topology if isinstance(operator, ActorPoolMapOperator)]
    taken = sum(operator.min_max_resource_requirements()[0].cpu or 0 for operator in pools)
    have = ray.cluster_resources().get("CPU", 0)
    if taken + 1 > have:
        raise ClusterError(
            f"the workers of this dataset take {taken:g} of the cluster's {have:g} CPUs, which leaves none for what is "
            "between them. Add CPUs, lower `concurrency`, or end one processor before the next begins: "
            "`.materialize()` between them."
        )


class _Execution(ExecutionCallback):  # type: ignore[misc]  # Ray has no types
    """One execution of a processor's dataset, as Ray Data tells of it.

    Args:
        told: what rows go through, and how many there are, for the display; None shows nothing.
        board: from `open_board`.
        leave: called when it has ended.
        name: names it for `stop`.
    """

    def __init__(self, told: tuple[str, int | None] | None, board: Any, leave: Callable[[], None], name: str) -> None:
        self._told = told
        self._board = board
        self._leave = leave
        self._name = name
        self._has_room = False
        self._display: Display | None = None
        self._asked_at = 0.0
        self._asked: Any = None

    def before_execution_starts(self, executor: Any) -> None:
        # What was told of an earlier execution, perhaps of a dataset that this one is made of, is over.
        self._board.begin.remote()

    def on_execution_step(self, executor: Any) -> None:
        if not self._has_room:
            # Not before it starts: its actors have started by then, and Ray Data would leave them.
            _check_room(executor)
            self._has_room = True
        if self._name in _stopped:
            raise StoppedError("The job was stopped.")
        if self._told is None or time.monotonic() - self._asked_at < _PERIOD_S:
            return
        # Never wait here: the whole execution would.
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            self._show(ray.get(self._asked))
            self._asked = None
        if self._asked is None:
            self._asked, self._asked_at = self._board.totals.remote(), time.monotonic()

    def after_execution_succeeds(self, executor: Any) -> None:
        self._end()

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        self._end()

    def _end(self) -> None:
        self._leave()
        if self._told is None:
            return
        with suppress(RayError):
            self._show(ray.get(self._board.totals.remote(), timeout=5))
        if self._display is not None:
            self._display.close()

    def _show(self, totals: Totals) -> None:
        # Engines start before the first row is done; that time is no part of the rate.
        if totals.rows and self._display is None and self._told is not None:
            self._display = Display(*self._told)
        if self._display is not None:
            self._display.show(totals)
