"""Hooks into Ray Data's execution of a dataset: row order, checkpoints, progress, stopping and cleanup."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.data import Dataset
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.operators.actor_pool_map_operator import ActorPoolMapOperator
from ray.exceptions import RayError

from rayllm.batch.config import ProcessorConfig
from rayllm.batch.execution.checkpoints import keep_checkpoints
from rayllm.batch.execution.progress import Display, Totals
from rayllm.cluster.capacity import may_grow
from rayllm.core.errors import ClusterError, RayLLMError
from rayllm.core.settings import settings

_PERIOD_S = 0.5


class StoppedError(RayLLMError):
    """The execution was stopped from outside."""


# Ids of executions to stop. Ray Data copies callbacks, so an id is all that they share with the caller.
_stopped: set[str] = set()


def stop(execution_id: str) -> None:
    """End an execution soon, with StoppedError."""
    _stopped.add(execution_id)


def prepare(
    dataset: Dataset,
    config: ProcessorConfig,
    label: str,
    progress: Any,
    release: Callable[[], None],
    execution_id: str,
) -> Dataset:
    """Configure the execution of a processor's output.

    Args:
        progress: handle of a `JobProgress` actor.
        release: called when an execution has ended.
        execution_id: the id for `stop`.

    Raises:
        ConfigError: Ray Data cannot keep the checkpoints that the configuration asks for.
    """
    # A dataset shares its context with its inputs; these options are for this dataset and those derived from it.
    dataset = Dataset.copy(dataset, _deep_copy=True)
    context = dataset.context
    if config.preserve_order:
        context.execution_options.preserve_order = True
    if config.checkpoint is not None:
        keep_checkpoints(dataset, config.checkpoint)
    if config.show_progress:
        context.enable_progress_bars = False
    total = _row_count(dataset)
    context.custom_execution_callback_classes = [
        *context.custom_execution_callback_classes,
        # Ray Data creates a callback for each execution.
        partial(_Callback, (label, total) if config.show_progress else None, progress, release, execution_id),
    ]
    return dataset


def _row_count(dataset: Dataset) -> int | None:
    """Rows of the input; None if the metadata has no count."""
    operator = dataset._logical_plan.dag
    while operator.input_dependencies:
        operator = operator.input_dependencies[0]
    count: int | None = operator.infer_metadata().num_rows
    return count


def _check_cpus(executor: Any) -> None:
    """Refuse an execution whose actors leave no CPU for the tasks between them. Raises ClusterError with the mend."""
    if settings().resource_check == "never" or may_grow():
        return
    pools = [operator for operator in executor._topology if isinstance(operator, ActorPoolMapOperator)]
    required = sum(operator.min_max_resource_requirements()[0].cpu or 0 for operator in pools)
    available = ray.cluster_resources().get("CPU", 0)
    if required + 1 > available:
        raise ClusterError(
            f"the workers of this dataset take {required:g} of the cluster's {available:g} CPUs, which leaves none for "
            "the tasks between them. Add CPUs, lower `concurrency`, or finish one processor before the next with "
            "`.materialize()` between them."
        )


@dataclass
class _Callback(ExecutionCallback):  # type: ignore[misc]  # Ray has no types
    """Callback of Ray Data for one execution of a processor's dataset, with the arguments of `prepare`.

    `shown` is the label and the total of the progress bar; None shows no bar.
    """

    shown: tuple[str, int | None] | None
    progress: Any
    release: Callable[[], None]
    execution_id: str
    _has_checked_cpus: bool = False
    _display: Display | None = None
    _polled_at: float = 0.0
    _pending: Any = None

    def before_execution_starts(self, executor: Any) -> None:
        # Totals of an earlier execution, perhaps of a dataset that this one derives from, are obsolete.
        self.progress.reset.remote()

    def on_execution_step(self, executor: Any) -> None:
        if not self._has_checked_cpus:
            # Not in `before_execution_starts`: the actors are running by then, and Ray Data would leak them.
            _check_cpus(executor)
            self._has_checked_cpus = True
        if self.execution_id in _stopped:
            raise StoppedError("The job was stopped.")
        if self.shown is None or time.monotonic() - self._polled_at < _PERIOD_S:
            return
        # Never block here: it would hold up the whole execution.
        if self._pending is not None and ray.wait([self._pending], timeout=0)[0]:
            self._show(ray.get(self._pending))
            self._pending = None
        if self._pending is None:
            self._pending, self._polled_at = self.progress.totals.remote(), time.monotonic()

    def after_execution_succeeds(self, executor: Any) -> None:
        self._end()

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        self._end()

    def _end(self) -> None:
        self.release()
        if self.shown is None:
            return
        with suppress(RayError):
            self._show(ray.get(self.progress.totals.remote(), timeout=5))
        if self._display is not None:
            self._display.close()

    def _show(self, totals: Totals) -> None:
        # Engines start before the first row is done; that time must not count in the rate.
        if totals.rows and self._display is None and self.shown is not None:
            self._display = Display(*self.shown)
        if self._display is not None:
            self._display.show(totals)
