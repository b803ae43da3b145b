"""The lifecycle of one batch: validated, worked on, finalized, and ended one way or another.

Who goes it may die at any point; who begins anew goes on from there, since all state is in the stores and in the job's
folder.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

from rayllm.errors import RayLLMError, StorageError
from rayllm.serving.batch_api.objects.batch import Batch, BatchError, Errors, RequestCounts
from rayllm.serving.batch_api.objects.ids import FILE, new_id
from rayllm.serving.batch_api.storage.batch_store import BatchStore
from rayllm.serving.batch_api.storage.file_store import FileStore

logger = logging.getLogger(__name__)

Ending = Literal["completed", "failed", "expired", "cancelled"]

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
"""Files that a job leaves in its folder."""

# So often it is looked whether a batch was cancelled or its time is over, and its counts are written down.
_LOOK_S = _NOTE_S = 2.0
MAX_ATTEMPTS = 3
"""Runners that may die on a batch without getting any further; then it fails."""

_EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")


class Job(Protocol):
    """The execution of a batch's requests: `rayllm.batch.job.Job`, which says more of each method."""

    counts: Any
    """`total`, `completed` and `failed`; the first is known when the input is validated."""

    def validate(self) -> Sequence[Any]:
        """Faults of the input, with `code`, `message`, `line` and `param`."""

    def run(self, on_progress: Callable[[Any], None]) -> None:
        """Answer what is not answered yet. `on_progress` gets the counts."""

    def stop(self) -> None:
        """Have `run` return soon."""

    def finish(self, unfinished: Any = None) -> Any:
        """Write the answers into files; what has none gets the fault `unfinished`. Gives the counts."""


class Course:
    """The lifecycle of one batch. It blocks.

    Args:
        batch: the batch, which has not ended.
        batches: where its state is kept.
        files: where its answers go.
        open_job: makes its job.
        fault: makes a fault of the job from a code and a message.
        attempt: the number of this runner among those that have begun since the batch last got further.
    """

    def __init__(
        self,
        batch: Batch,
        batches: BatchStore,
        files: FileStore,
        open_job: Callable[[Batch], Job],
        fault: Callable[[str, str], Any],
        attempt: int = 1,
    ) -> None:
        self._batch = batch
        self._batches = batches
        self._files = files
        self._open_job = open_job
        self._fault = fault
        self._attempt = attempt
        self._noting = threading.Lock()
        self._noted_at = float("-inf")
        self._stopped_for: Literal["cancelled", "expired"] | None = None

    def run(self) -> None:
        """Bring the batch to its end.

        Raises:
            StorageError: its state cannot be read or written; the batch can be taken up again later.
        """
        try:
            status, errors = self._go()
        except StorageError:
            raise
        except Exception as error:
            self._batch.output_file_id = self._batch.error_file_id = None
            status, errors = "failed", [_reason(error)]
        self._end(status, errors)

    def _go(self) -> tuple[Ending, list[BatchError]]:
        """Go as far as it goes; gives how it ends, and why."""
        self._look()
        if self._stopped_for == "cancelled" and self._batch.in_progress_at is None:
            return "cancelled", []
        if self._attempt > MAX_ATTEMPTS + 1:
            # Even gathering what was answered is too much for a runner.
            self._batch.output_file_id = self._batch.error_file_id = None
            return "failed", [_died()]
        job = self._open_job(self._batch)
        if faults := job.validate():
            return "failed", [BatchError.model_validate(fault, from_attributes=True) for fault in faults]
        self._batch.request_counts.total = job.counts.total
        failure = self._work(job) if self._attempt <= MAX_ATTEMPTS else _died()
        self._gather(job, failure)
        return ("failed", [failure]) if failure else (self._stopped_for or "completed", [])

    def _work(self, job: Job) -> BatchError | None:
        """Have the requests answered; gives the reason where that broke off."""
        self._look()
        if self._stopped_for:
            return None
        if self._batch.in_progress_at is None:
            self._batch.status, self._batch.in_progress_at = "in_progress", self._now()
            self._batches.save(self._batch)
        try:
            with self._watched(job):
                job.run(self._note)
        except StorageError:
            raise
        except Exception as error:
            # One that is stopped may say so in this way.
            return None if self._stopped_for else _reason(error)
        finally:
            # What a job still tells would be older than what it finishes with.
            with self._noting:
                self._noted_at = float("inf")
        return None

    def _gather(self, job: Job, failure: BatchError | None) -> None:
        """Keep the answers as files."""
        batch, unfinished = self._batch, None
        if self._stopped_for == "expired":
            unfinished = self._fault(*_EXPIRED)
        elif failure:
            unfinished = self._fault(failure.code, failure.message)
        elif not self._stopped_for:
            batch.status, batch.finalizing_at = "finalizing", batch.finalizing_at or self._now()
        # Named first, so that who does this again after a crash makes no second ones.
        output, errors = batch.output_file_id or new_id(FILE), batch.error_file_id or new_id(FILE)
        batch.output_file_id, batch.error_file_id = output, errors
        self._batches.save(batch)
        batch.request_counts = RequestCounts.model_validate(job.finish(unfinished), from_attributes=True)
        batch.output_file_id, batch.error_file_id = self._keep(OUTPUT, output), self._keep(ERRORS, errors)

    def _keep(self, name: str, file_id: str) -> str | None:
        """Make a file of what the job left under `name`; gives its id, if there is anything."""
        folder, batch = self._batches.job_folder(self._batch.id), self._batch
        size = folder.size(name)
        if not size:
            return None
        with folder.open(name) as content:
            self._files.put(content, size, f"{batch.id}_{name}", "batch_output", batch.output_lifetime_s, file_id)
        return file_id

    def _end(self, status: Ending, errors: list[BatchError]) -> None:
        batch = self._batch
        batch.status, batch.errors = status, Errors(data=errors) if errors else None
        match status:
            case "completed":
                batch.completed_at = self._now()
            case "failed":
                batch.failed_at = self._now()
            case "expired":
                batch.expired_at = self._now()
            case "cancelled":
                batch.cancelled_at = self._now()
        self._batches.save(batch)

    def _note(self, counts: Any) -> None:
        """Write the counts down, if that was not done just now. Jobs call this from threads of theirs."""
        with self._noting:
            if time.monotonic() < self._noted_at + _NOTE_S:
                return
            self._noted_at = time.monotonic()
            self._batch.request_counts = RequestCounts.model_validate(counts, from_attributes=True)
            try:
                self._batches.save(self._batch)
            except StorageError as error:
                logger.warning("The counts of %s cannot be written down now: %s", self._batch.id, error)

    @contextmanager
    def _watched(self, job: Job) -> Iterator[None]:
        """Stop the job where the batch is cancelled or expires in the body of the block."""
        over = threading.Event()

        def watch() -> None:
            while not self._stopped_for and not over.wait(_LOOK_S):
                self._look()
            if self._stopped_for:
                job.stop()

        watching = threading.Thread(target=watch, name="batch-watch", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _look(self) -> None:
        """See whether the batch is to be stopped. One whose answers are all there is not."""
        batch = self._batch
        if self._stopped_for or batch.finalizing_at is not None:
            return
        try:
            batch.cancelling_at = self._batches.cancelled_at(batch.id)
        except StorageError as error:
            logger.warning("Nobody knows whether %s is cancelled: %s", batch.id, error)
        if batch.cancelling_at is not None:
            self._stopped_for = "cancelled"
        elif self._batches.now() >= batch.expires_at:
            self._stopped_for = "expired"

    def _now(self) -> int:
        return int(self._batches.now())


def _died() -> BatchError:
    return BatchError(
        code="batch_runner_died",
        message=f"The process that works on this batch died {MAX_ATTEMPTS} times without getting further, so the rest "
        "was not tried again. A node without memory for it may be the cause, or a request that ends the process: see "
        "the service's log, and send the batch again in smaller parts.",
    )


def _reason(error: Exception) -> BatchError:
    """An error as clients may see it."""
    if isinstance(error, RayLLMError):
        return BatchError(code=error.code or error.type, message=error.message, param=error.param)
    logger.error("Unforeseen error of a batch", exc_info=error)
    return BatchError(code="server_error", message="The service failed on this batch; its log says why.")
