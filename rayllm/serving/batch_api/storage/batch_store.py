"""Store of batches in a folder."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rayllm.access import ANYONE, Caller
from rayllm.core.errors import ConflictError, ObjectNotFoundError
from rayllm.serving.batch_api.objects import BATCH, Batch, BatchRequest, created_at, is_id, new_id
from rayllm.serving.batch_api.page import Cursor, Page, TenantCache
from rayllm.sources.storage import Folder

# Seconds after which a mark without a batch is stale: the router died while creating the batch.
_CREATION_S = 60


class Unfinished(NamedTuple):
    """An unfinished batch, and its expiry in seconds since the epoch."""

    id: str
    expires_at: int


@dataclass(frozen=True)
class Attempts:
    """Runners that have started since `answered` requests of the batch were answered."""

    count: int = 0
    answered: int = 0


class BatchStore:
    """Batches in a folder. All methods block, and raise StorageError if the folder cannot be read or written."""

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self.now = now
        self._tenants = TenantCache()

    def create(self, request: BatchRequest, caller: Caller = ANYONE) -> Batch:
        """Create a batch of the caller's. The input file is not validated."""
        created_at, lifetime = int(self.now()), request.output_expires_after
        batch = Batch(
            **request.model_dump(exclude={"output_expires_after"}),
            id=new_id(BATCH),
            created_at=created_at,
            expires_at=created_at + request.window_s,
            output_lifetime_s=lifetime.seconds if lifetime else None,
            tenant=caller.tenant,
            key=caller.name if caller.tenant else "",
            models=caller.models,
        )
        # The mark comes first: a batch without a mark would never be executed.
        self._folder.write(_mark(batch), b"")
        self._folder.write(f"batches/{batch.id}.json", batch.model_dump_json().encode())
        return batch

    def get(self, batch_id: str, caller: Caller = ANYONE) -> Batch:
        """The present state of a batch. Raises ObjectNotFoundError if the caller has no such batch."""
        batch = self._find(batch_id) if is_id(BATCH, batch_id) else None
        if batch is None or not caller.may_see(batch.tenant):
            raise ObjectNotFoundError(f"There is no batch `{batch_id[:100]}`.", "batch_id")
        return batch

    def page(self, cursor: Cursor, caller: Caller = ANYONE) -> Page[Batch]:
        return self._tenants.page(self._folder.names("batches"), cursor, caller, self._find)

    def cancel(self, batch_id: str, caller: Caller = ANYONE) -> Batch:
        """Request the cancellation of a batch. Raises ObjectNotFoundError, or ConflictError if the batch is done."""
        batch = self.get(batch_id, caller)
        if batch.status not in ("validating", "in_progress", "cancelling"):
            message = f"The batch is `{batch.status}`; only one that is `validating` or `in_progress` can be cancelled."
            raise ConflictError(message, "batch_id")
        if batch.cancelling_at is None:
            batch.cancelling_at = int(self.now())
            self._folder.write(f"cancellations/{batch_id}", str(batch.cancelling_at).encode())
            batch.status = "cancelling"
        return batch

    def cancelled_at(self, batch_id: str) -> int | None:
        """Time of the batch's cancellation; None if it was not cancelled."""
        try:
            return int(self._folder.read(f"cancellations/{batch_id}"))
        except FileNotFoundError:
            return None

    def save(self, batch: Batch) -> None:
        """Save the state of a batch. Only its runner may call this."""
        self._folder.write(f"progress/{batch.id}.json", batch.model_dump_json().encode())

    def begin(self, batch: Batch) -> int:
        """Count a runner that starts on the batch. Only that runner may call this.

        Returns the runners started since the batch last made progress, this runner included.
        """
        answered = batch.request_counts.completed + batch.request_counts.failed
        before = self._attempts().get(batch.id, Attempts(0, answered))
        now = Attempts(1, answered) if answered > before.answered else Attempts(before.count + 1, before.answered)
        self._folder.write(_attempts(batch.id, now), b"")
        if before.count:
            self._folder.delete(_attempts(batch.id, before))
        return now.count

    def close(self, batch: Batch) -> None:
        """Delete the working files of a batch that has ended."""
        for name in self._folder.names("attempts"):
            if name.startswith(f"{batch.id}."):
                self._folder.delete(f"attempts/{name}")
        self._folder.delete_folder(_job(batch.id))
        self._folder.delete(f"cancellations/{batch.id}")
        self._folder.delete(_mark(batch))

    def job_folder(self, batch_id: str) -> Folder:
        return Folder(self._folder.address(_job(batch_id)))

    def unfinished(self) -> list[Unfinished]:
        """The unfinished batches, oldest first."""
        marks = [name.partition(".") for name in self._folder.names("unfinished")]
        return [Unfinished(batch_id, int(expires_at)) for batch_id, _, expires_at in marks]

    def due(self, most: int) -> list[str]:
        """Ids of the batches that need a runner now.

        These are the `most` oldest, so that routers agree without communication, and those that were cancelled or have
        expired. Batches whose runners died leave at least one place to others.
        """
        unfinished, cancelled = self.unfinished(), set(self._folder.names("cancellations"))
        ending = [entry for entry in unfinished if entry.id in cancelled or entry.expires_at <= self.now()]
        working = [entry for entry in unfinished if entry not in ending]
        attempts = self._attempts()
        failing = [entry for entry in working if attempts.get(entry.id, Attempts()).count > 1]
        if len(failing) < len(working):
            left_out = failing[max(1, most - 1) :]
            working = [entry for entry in working if entry not in left_out]
        return [entry.id for entry in [*working[:most], *ending]]

    def inputs(self) -> dict[str, str]:
        """Batch id by input file id, of the unfinished batches."""
        batches = [self._find(entry.id) for entry in self.unfinished()]
        return {batch.input_file_id: batch.id for batch in batches if batch is not None and not batch.has_ended}

    def forget_ended(self, most: int) -> None:
        """Delete all but the latest `most` ended batches."""
        unfinished = {entry.id for entry in self.unfinished()}
        # Listed after the marks, which are written first and deleted last: a batch without a mark has ended.
        ended = [i for name in self._folder.names("progress") if (i := name.removesuffix(".json")) not in unfinished]
        for batch_id in ended[: max(0, len(ended) - most)]:
            if (batch := self._find(batch_id)) is not None and batch.has_ended:
                self._folder.delete(f"batches/{batch_id}.json")
                self._folder.delete(f"progress/{batch_id}.json")

    def delete_stale_marks(self) -> None:
        """Delete marks of batches that were never created."""
        for entry in self.unfinished():
            if created_at(entry.id) < self.now() - _CREATION_S and self._find(entry.id) is None:
                self._folder.delete(f"unfinished/{entry.id}.{entry.expires_at}")

    def _attempts(self) -> dict[str, Attempts]:
        """The latest attempts of each batch. A runner may have died between writing two marks."""
        attempts: dict[str, Attempts] = {}
        for name in self._folder.names("attempts"):
            batch_id, count, answered = name.split(".")
            latest = attempts.get(batch_id, Attempts())
            entry = Attempts(int(count), int(answered))
            attempts[batch_id] = max(latest, entry, key=lambda each: (each.answered, each.count))
        return attempts

    def _find(self, batch_id: str) -> Batch | None:
        """The batch in its present state, with a pending cancellation applied."""
        for place in ("progress", "batches"):
            try:
                batch = Batch.model_validate_json(self._folder.read(f"{place}/{batch_id}.json"))
            except FileNotFoundError:
                continue
            self._tenants.add(batch_id, batch.tenant)
            if not batch.has_ended and (cancelled_at := self.cancelled_at(batch_id)):
                batch.status, batch.cancelling_at = "cancelling", cancelled_at
            return batch
        return None


def _mark(batch: Batch) -> str:
    return f"unfinished/{batch.id}.{batch.expires_at}"


def _attempts(batch_id: str, attempts: Attempts) -> str:
    return f"attempts/{batch_id}.{attempts.count}.{attempts.answered}"


def _job(batch_id: str) -> str:
    return f"jobs/{batch_id}"
