"""The process that executes one batch: a Ray actor that lives as long as the batch, independent of routers."""

import io
import logging
import resource
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayllm.access import ANYONE, Caller, KeyFile
from rayllm.access.oidc import PREFIX
from rayllm.batch.config import RequestProcessorConfig
from rayllm.cluster.ray_internals import session_log_folder
from rayllm.config import AppConfig, BatchesConfig, ModelConfig
from rayllm.core.errors import ConfigError, ObjectNotFoundError, RequestError, StorageError
from rayllm.core.json_body import parse_body
from rayllm.core.logs import set_up_logging
from rayllm.core.settings import settings
from rayllm.serving.batch_api.execution.lifecycle import BatchLifecycle
from rayllm.serving.batch_api.execution.runner_log import RunnerLog
from rayllm.serving.batch_api.objects import Batch
from rayllm.serving.batch_api.storage.stores import Stores, open_stores
from rayllm.serving.router.model_registry import ModelRegistry

if TYPE_CHECKING:
    from rayllm.batch.files.job import Job

logger = logging.getLogger(__name__)

_RETRY_S = 10.0
# Bytes of memory that this process may use for a batch.
_MEMORY_BYTES = 4 << 30
# Folder of the logs, in the log folder of Ray's session.
_LOGS = "rayllm-batches"

NAMESPACE = "rayllm-batches"
"""Ray namespace of the runners."""


def start_runner(app_name: str, batch_id: str, config: AppConfig) -> None:
    """Start the runner of a batch, unless it has one. Blocks."""
    options = {
        "name": f"{app_name}:{batch_id}",
        "namespace": NAMESPACE,
        "get_if_exists": True,
        # The runner outlives the router. If the runner dies, a router starts another.
        "lifetime": "detached",
        "max_restarts": 0,
        # A runner is idle nearly all the time.
        "num_cpus": 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=None),
    }
    ray.remote(Runner).options(**options).remote(app_name, batch_id, config)


class Runner:
    """Executes one batch, then exits."""

    def __init__(self, app_name: str, batch_id: str, config: AppConfig) -> None:
        self._log = RunnerLog(session_log_folder() / _LOGS, batch_id)
        self._log.redirect_output()
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
                logger.warning("%s: its storage failed, trying again in %g s: %s", self._batch_id, _RETRY_S, error)
                time.sleep(_RETRY_S)
            except Exception:
                logger.exception("%s: the runner failed; a router starts another", self._batch_id)
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
            counts, reason = batch.request_counts, f": {batch.errors.data[0].message}" if batch.errors else ""
            done = f"{counts.completed} of {counts.total} requests answered, {counts.failed} failed"
            self._log.announce(f"{batch.id}: {batch.status}, {done}{reason}")
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


def open_job(app_name: str, config: AppConfig, options: BatchesConfig, stores: Stores, batch: Batch) -> "Job":
    """Create the job of a batch. Raises as `executor_of`."""
    from rayllm.batch.files.job import Job

    lines, folder = stores.files.address(batch.input_file_id), stores.batches.job_folder(batch.id).uri
    executor = executor_of(app_name, config, options, stores, batch)
    return Job(lines, folder, executor, batch.endpoint, options.max_requests, config.router.max_body_bytes)


def executor_of(
    app_name: str, config: AppConfig, options: BatchesConfig, stores: Stores, batch: Batch
) -> RequestProcessorConfig:
    """Configuration of the processor that executes a batch. With `execution: engines`, the rights are checked here.

    Raises:
        RequestError, AuthenticationError: the model is not one of the service, or the key is no longer valid.
        StorageError: the input or the keys cannot be read now.
    """
    if options.execution == "deployed":
        # The router checks the rights of keys.
        target: dict[str, Any] = {"app_name": app_name, "caller": Caller(batch.key, batch.tenant, batch.models)}
    else:
        caller = _caller(config.router.keys, batch)
        target = {"model": _model(config, stores, batch, caller), "caller": caller}
    return RequestProcessorConfig(max_pending_requests=options.concurrency, show_progress=False, **target)


def _caller(keys: str | None, batch: Batch) -> Caller:
    if batch.key.startswith(PREFIX):
        return Caller(batch.key, batch.tenant, batch.models)
    if not batch.key or not keys:
        return ANYONE
    try:
        return KeyFile(keys).load().keyring.named(batch.key)
    except ConfigError as error:
        raise StorageError(error.message) from None


def _model(config: AppConfig, stores: Stores, batch: Batch, caller: Caller) -> ModelConfig:
    """The model that the first request names, as all other requests must."""
    with stores.files.open(batch.input_file_id) as content:
        line = io.BufferedReader(content).readline(config.router.max_body_bytes)
    try:
        name = parse_body(line)["body"]["model"]
    except (RequestError, LookupError, TypeError):
        name = None
    if not isinstance(name, str):
        raise RequestError("The first line must be a request with a `model` in its `body`.", "body.model")
    model_id = ModelRegistry(config).resolve(name, caller=caller).model_id
    return next(model for model in config.models if model.model_id == model_id)
