"""Creates the jobs that execute batches."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from rayllm.access import ANYONE, Caller, KeyFile
from rayllm.access.oidc import PREFIX
from rayllm.config import AppConfig, BatchesConfig, ModelConfig
from rayllm.errors import ConfigError, RequestError, StorageError
from rayllm.serving.batch_api.objects.batch import Batch
from rayllm.serving.batch_api.storage.stores import Stores
from rayllm.serving.router.model_registry import ModelRegistry

if TYPE_CHECKING:
    from rayllm.batch.files.job import Executor, Job

# No request is longer than this.
_LONGEST_LINE = 32 * 1024 * 1024


class Jobs:
    """Creates jobs.

    Args:
        app_name: the Serve application.
        config: the service's configuration.
        options: options of batches.
        stores: the stores of files and batches.
    """

    def __init__(self, app_name: str, config: AppConfig, options: BatchesConfig, stores: Stores) -> None:
        self._app_name = app_name
        self._options = options
        self._files, self._batches = stores
        self._keys = config.router.keys
        self._models = ModelRegistry(config)

    def open(self, batch: Batch) -> Job:
        """Create the job of a batch.

        Raises:
            RequestError: with `execution: engines`, the first request names no model of this service.
            AuthenticationError: with `execution: engines`, the batch's key is no longer valid.
            StorageError: the input or the keys cannot be read now.
        """
        from rayllm.batch.files.job import Job

        lines, folder = self._files.address(batch.input_file_id), self._batches.job_folder(batch.id).uri
        return Job(lines, folder, self.executor(batch), batch.endpoint, self._options.max_requests)

    def executor(self, batch: Batch) -> Executor:
        """The executor of a batch's requests. Raises as `open`."""
        from rayllm.batch.files.job import deployed, engines

        if self._options.execution == "deployed":
            # The router knows the rights of keys.
            caller = Caller(batch.key, models=batch.models)
            return deployed(self._app_name, self._options.concurrency, caller)
        return engines(self._model(batch), self._options.concurrency, self._caller(batch))

    def _caller(self, batch: Batch) -> Caller:
        if batch.key.startswith(PREFIX):
            return Caller(batch.key, models=batch.models)
        if not batch.key or not self._keys:
            return ANYONE
        try:
            return KeyFile(self._keys).load().keyring.named(batch.key)
        except ConfigError as error:
            raise StorageError(error.message) from None

    def _model(self, batch: Batch) -> ModelConfig:
        """The model in the first request; all others must name it too."""
        with self._files.open(batch.input_file_id) as content:
            line = io.BufferedReader(content).readline(_LONGEST_LINE)
        try:
            name = json.loads(line)["body"]["model"]
        except (ValueError, LookupError, TypeError):
            name = None
        if not isinstance(name, str):
            raise RequestError("The first line must be a request with a `model` in its `body`.", "body.model")
        model_id = self._models.resolve(name).model_id
        return next(model for model in self._models.models if model.model_id == model_id)
