"""Creates the jobs that execute batches."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rayllm.access import ANYONE, Caller, KeyFile
from rayllm.access.oidc import PREFIX
from rayllm.config import AppConfig, BatchesConfig, ModelConfig
from rayllm.core.errors import ConfigError, RequestError, StorageError
from rayllm.core.json_body import parse_body
from rayllm.serving.batch_api.objects import Batch
from rayllm.serving.batch_api.storage.stores import Stores
from rayllm.serving.router.model_registry import ModelRegistry

if TYPE_CHECKING:
    from rayllm.batch.files.job import Executor, Job


def open_job(app_name: str, config: AppConfig, options: BatchesConfig, stores: Stores, batch: Batch) -> Job:
    """Create the job of a batch.

    Raises:
        RequestError: with `execution: engines`, the first request names no model of this service.
    """
    from rayllm.batch.files.job import Job

    lines, folder = stores.files.address(batch.input_file_id), stores.batches.job_folder(batch.id).uri
    executor = executor_of(app_name, config, options, stores, batch)
    return Job(lines, folder, executor, batch.endpoint, options.max_requests, config.router.max_body_bytes)


def executor_of(app_name: str, config: AppConfig, options: BatchesConfig, stores: Stores, batch: Batch) -> Executor:
    """The executor of a batch's requests.

    Raises:
        RequestError: with `execution: engines`, the first request names no model of this service.
        AuthenticationError: with `execution: engines`, the batch's key is no longer valid.
        StorageError: the input or the keys cannot be read now.
    """
    from rayllm.batch.files.job import executor

    if options.execution == "deployed":
        # The router knows the rights of keys.
        return executor(options.concurrency, Caller(batch.key, batch.tenant, batch.models), app_name=app_name)
    caller = _caller(config.router.keys, batch)
    return executor(options.concurrency, caller, model=_model(config, stores, batch, caller))


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
    """The model in the first request; all others must name it too."""
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
