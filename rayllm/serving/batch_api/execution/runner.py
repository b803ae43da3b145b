"""The process that works on one batch: a Ray actor that lives as long as the work, independent of routers."""

from __future__ import annotations

import logging
import resource
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayllm.cluster.ray_internals import session_log_folder
from rayllm.config import AppConfig
from rayllm.core.errors import ObjectNotFoundError, StorageError
from rayllm.core.logs import set_up_logging
from rayllm.core.settings import settings
from rayllm.serving.batch_api.execution.jobs import open_job
from rayllm.serving.batch_api.execution.lifecycle import BatchLifecycle
from rayllm.serving.batch_api.execution.runner_log import RunnerLog
from rayllm.serving.batch_api.objects import Batch
from rayllm.serving.batch_api.storage.stores import open_stores

logger = logging.getLogger(__name__)

_RETRY_S = 10.0
# Bytes of memory that a batch may take in this process.
_MEMORY_BYTES = 4 << 30
# Below the log folder of Ray's session.
_LOGS = "rayllm-batches"

NAMESPACE = "rayllm-batches"
"""Ray namespace of the runners."""


def start_runner(app_name: str, batch_id: str, config: AppConfig) -> None:
    """Start a runner for the batch, unless there is one. Blocks."""
    options = {
        "name": f"{app_name}:{batch_id}",
        "namespace": NAMESPACE,
        "get_if_exists": True,
        # It outlives the router that starts it. If it dies, a router starts another.
        "lifetime": "detached",
        "max_restarts": 0,
        # It is idle nearly all the time.
        "num_cpus": 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=None),
    }
    ray.remote(Runner).options(**options).remote(app_name, batch_id, config)


class Runner:
    """Works on one batch, then exits."""

    def __init__(self, app_name: str, batch_id: str, config: AppConfig) -> None:
        self._log = RunnerLog(session_log_folder() / _LOGS, batch_id)
        self._log.take_output()
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
        set_up_logging(settings().log_level)
        limit_memory(_MEMORY_BYTES)
        self._app_name = app_name
        self._batch_id = batch_id
        self._config = config
        self._attempt: int | None = None
        self._me: Any = ray.get_runtime_context().current_actor
        # Not in an actor call: the caller may die before it returns.
        threading.Thread(target=self._run, name="batch", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._work()
                break
            except StorageError as error:
                # Retried here: another runner would do no better.
                logger.warning("%s waits %g s for its storage: %s", self._batch_id, _RETRY_S, error)
                time.sleep(_RETRY_S)
            except Exception:
                logger.exception("%s is interrupted; a router starts another runner", self._batch_id)
                break
        # `exit_actor` would wait for up to a minute for a call to Ray Serve's controller, which is always under way.
        ray.kill(self._me)

    def _work(self) -> None:
        options = self._config.router.batches
        assert options is not None  # noqa: S101  (batches need them)
        files, batches = stores = open_stores(options.storage)
        try:
            batch = batches.get(self._batch_id)
        except ObjectNotFoundError:
            batches.delete_stale_marks()
            return
        if not batch.has_ended:
            if self._attempt is None:
                self._attempt = batches.begin(batch)
                self._log.announce(f"{batch.id}: started; its log is {self._log.path}")
            opener = partial(open_job, self._app_name, self._config, options, stores)
            BatchLifecycle(batch, batches, files, opener, self._attempt).run()
            self._log.announce(f"{batch.id}: {_summary(batch)}")
        batches.close(batch)


def limit_memory(size: int) -> None:
    """Limit this process to `size` more bytes of private memory; a larger allocation raises MemoryError.

    Source: getrlimit(2), RLIMIT_DATA; proc_pid_status(5), VmData.
    """
    status = Path("/proc/self/status").read_text()
    _, _, rest = status.partition("VmData:")
    limit = 1024 * int(rest.split()[0]) + size
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _summary(batch: Batch) -> str:
    counts = batch.request_counts
    reason = f": {batch.errors.data[0].message}" if batch.errors else ""
    return f"{batch.status}, {counts.completed} of {counts.total} requests answered, {counts.failed} failed{reason}"
