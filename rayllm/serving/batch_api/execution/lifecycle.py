"""The lifecycle of one batch: validation, execution, finalization and its final state.

The runner may die at any point: the next runner resumes, since all state is in the stores and in the job's folder.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from rayllm.batch.files.jsonl import ERRORS, OUTPUT, Counts, Fault
from rayllm.core.errors import RayLLMError, StorageError
from rayllm.core.periodic import repeated
from rayllm.serving.batch_api.objects import FILE, Batch, Errors, new_id
from rayllm.serving.batch_api.storage.batch_store import BatchStore
from rayllm.serving.batch_api.storage.file_store import FileStore

if TYPE_CHECKING:
    from rayllm.batch.files.job import Job

logger = logging.getLogger(__name__)

Ending = Literal["completed", "failed", "expired", "cancelled"]

# Seconds between checks for cancellation and expiry, and between saves of the counts.
_CHECK_S = _SAVE_S = 2.0
MAX_ATTEMPTS = 3
"""Runners that may die on a batch without progress before the batch fails."""

_EXPIRED = Fault("batch_expired", "This request could not be executed before the completion window expired.")


@dataclass(eq=False)
class BatchLifecycle:
    """The lifecycle of one batch. Methods block. `attempt` is 1 for the first runner since the batch made progress."""

    batch: Batch
    batches: BatchStore
    files: FileStore
    open_job: Callable[[Batch], "Job"]
    attempt: int = 1

    def __post_init__(self) -> None:
        self._saving = threading.Lock()
        self._saved_at = float("-inf")
        self._stopped_for: Literal["cancelled", "expired"] | None = None

    def run(self) -> None:
        """Run the batch to its end. Raises StorageError if its state cannot be read or written; it may be resumed."""
        try:
            status, errors = self._advance()
        except StorageError:
            raise
        except Exception as error:
            self.batch.output_file_id = self.batch.error_file_id = None
            status, errors = "failed", [_reason(error)]
        self.batch.status, self.batch.errors = status, Errors(data=errors) if errors else None
        setattr(self.batch, f"{status}_at", self._now())
        self.batches.save(self.batch)

    def _advance(self) -> tuple[Ending, list[Fault]]:
        """Run all steps; returns the final state and the errors."""
        self._check_stop()
        if self._stopped_for == "cancelled" and self.batch.in_progress_at is None:
            return "cancelled", []
        if self.attempt > MAX_ATTEMPTS + 1:
            # Even writing the output kills the runner.
            self.batch.output_file_id = self.batch.error_file_id = None
            return "failed", [_runner_died()]
        job = self.open_job(self.batch)
        if faults := job.validate():
            return "failed", faults
        self.batch.request_counts.total = job.counts.total
        failure = self._execute(job) if self.attempt <= MAX_ATTEMPTS else _runner_died()
        self._write_files(job, failure)
        return ("failed", [failure]) if failure else (self._stopped_for or "completed", [])

    def _execute(self, job: "Job") -> Fault | None:
        """Execute the requests; returns the error that interrupted the job, if any."""
        self._check_stop()
        if self._stopped_for:
            return None
        if self.batch.in_progress_at is None:
            self.batch.status, self.batch.in_progress_at = "in_progress", self._now()
            self.batches.save(self.batch)
        try:
            with repeated(partial(self._watch, job), _CHECK_S):
                job.run(self._save_counts)
        except StorageError:
            raise
        except Exception as error:
            # A stopped job may raise.
            return None if self._stopped_for else _reason(error)
        finally:
            # Late progress reports are older than the final counts.
            with self._saving:
                self._saved_at = float("inf")
        return None

    def _write_files(self, job: "Job", failure: Fault | None) -> None:
        batch, unfinished = self.batch, _EXPIRED if self._stopped_for == "expired" else failure
        if not (unfinished or self._stopped_for):
            batch.status, batch.finalizing_at = "finalizing", batch.finalizing_at or self._now()
        # The ids are saved first: a repetition after a crash then creates no second files.
        output, errors = batch.output_file_id or new_id(FILE), batch.error_file_id or new_id(FILE)
        batch.output_file_id, batch.error_file_id = output, errors
        self.batches.save(batch)
        batch.request_counts = job.finish(unfinished)
        batch.output_file_id, batch.error_file_id = self._store(OUTPUT, output), self._store(ERRORS, errors)

    def _store(self, name: str, file_id: str) -> str | None:
        """Store a file that the job has written; returns the file's id, or None for an empty file."""
        folder, batch = self.batches.job_folder(self.batch.id), self.batch
        size = folder.size(name)
        if not size:
            return None
        with folder.open(name) as content:
            lifetime_s, tenant = batch.output_lifetime_s, batch.tenant
            self.files.put(content, size, f"{batch.id}_{name}", "batch_output", lifetime_s, file_id, tenant)
        return file_id

    def _save_counts(self, counts: Counts) -> None:
        """Save the counts every few seconds. Called from the job's threads."""
        with self._saving:
            if time.monotonic() < self._saved_at + _SAVE_S:
                return
            self._saved_at = time.monotonic()
            self.batch.request_counts = replace(counts)
            try:
                self.batches.save(self.batch)
            except StorageError as error:
                logger.warning("The counts of %s cannot be saved now: %s", self.batch.id, error)

    def _watch(self, job: "Job") -> None:
        """Stop the job if the batch is cancelled or has expired."""
        self._check_stop()
        if self._stopped_for:
            job.stop()

    def _check_stop(self) -> None:
        """Check for cancellation and expiry. A batch that is being finalized is not stopped."""
        batch = self.batch
        if self._stopped_for or batch.finalizing_at is not None:
            return
        try:
            batch.cancelling_at = self.batches.cancelled_at(batch.id)
        except StorageError as error:
            logger.warning("Cannot check whether %s is cancelled: %s", batch.id, error)
        if batch.cancelling_at is not None:
            self._stopped_for = "cancelled"
        elif self.batches.now() >= batch.expires_at:
            self._stopped_for = "expired"

    def _now(self) -> int:
        return int(self.batches.now())


def _runner_died() -> Fault:
    return Fault(
        "batch_runner_died",
        f"The process of this batch died {MAX_ATTEMPTS} times without progress, so the remaining requests were "
        "not executed. The node may lack memory, or a request may crash the process: see the service's log, and send "
        "the batch again in smaller parts.",
    )


def _reason(error: Exception) -> Fault:
    """An exception as an error for clients."""
    if isinstance(error, RayLLMError):
        return Fault(error.code or error.type, error.message, param=error.param)
    if isinstance(error, MemoryError):
        return Fault("out_of_memory", "The file takes too much memory; send it in smaller parts.")
    logger.error("Unexpected error of a batch", exc_info=error)
    return Fault("server_error", "The service failed on this batch; its log says why.")
