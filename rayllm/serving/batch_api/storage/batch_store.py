"""The batches that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rayllm.errors import ConflictError, ObjectNotFoundError
from rayllm.serving.batch_api.objects.batch import Batch, BatchRequest
from rayllm.serving.batch_api.objects.ids import BATCH, is_id, made_at, new_id
from rayllm.serving.batch_api.objects.page import Cursor, Page
from rayllm.storage import Folder

# A mark without a batch is one that is being made now, or one whose router died on it.
_MAKING_S = 60


@dataclass(frozen=True)
class Unfinished:
    """A batch that has not ended, and when it expires, in seconds since the epoch."""

    id: str
    expires_at: int


@dataclass(frozen=True)
class Attempts:
    """How many runners have begun to work on a batch since so many of its requests were answered."""

    count: int = 0
    answered: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether a runner died and left the batch no further."""
        return self.count > 1


class BatchStore:
    """Batches in a folder. Its methods block, and raise StorageError where the folder cannot be read or written.

    Args:
        folder: the folder.
        now: tells the time, in seconds since the epoch.
    """

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self.now = now

    def create(self, request: BatchRequest) -> Batch:
        """Take a batch in. The input file is not looked at."""
        made, lifetime = int(self.now()), request.output_expires_after
        batch = Batch(
            id=new_id(BATCH),
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            created_at=made,
            expires_at=made + request.window_s,
            metadata=request.metadata,
            output_lifetime_s=lifetime.seconds if lifetime else None,
        )
        # The mark first: a batch without one would wait for ever.
        self._folder.write(_mark(batch), b"")
        self._folder.write(f"batches/{batch.id}.json", batch.model_dump_json().encode())
        return batch

    def get(self, batch_id: str) -> Batch:
        """A batch as it stands.

        Raises:
            ObjectNotFoundError: there is no such batch.
        """
        batch = self._find(batch_id) if is_id(BATCH, batch_id) else None
        if batch is None:
            raise ObjectNotFoundError(f"There is no batch `{batch_id[:100]}`.", "batch_id")
        return batch

    def page(self, cursor: Cursor) -> Page[Batch]:
        """A part of the list of all batches."""
        return Page.read([name.removesuffix(".json") for name in self._folder.names("batches")], cursor, self._find)

    def cancel(self, batch_id: str) -> Batch:
        """Have a batch cancelled, which its runner does soon.

        Raises:
            ObjectNotFoundError: there is no such batch.
            ConflictError: it is too late.
        """
        batch = self.get(batch_id)
        if batch.status not in ("validating", "in_progress", "cancelling"):
            message = f"The batch is `{batch.status}`; only one that is `validating` or `in_progress` can be cancelled."
            raise ConflictError(message, "batch_id")
        if batch.cancelling_at is None:
            batch.cancelling_at = int(self.now())
            self._folder.write(f"cancellations/{batch_id}", str(batch.cancelling_at).encode())
            batch.status = "cancelling"
        return batch

    def cancelled_at(self, batch_id: str) -> int | None:
        """When a client cancelled the batch; None where nobody did."""
        try:
            return int(self._folder.read(f"cancellations/{batch_id}"))
        except FileNotFoundError:
            return None

    def save(self, batch: Batch) -> None:
        """Write down how far a batch is. Its runner alone may."""
        self._folder.write(f"progress/{batch.id}.json", batch.model_dump_json().encode())

    def begin(self, batch: Batch) -> int:
        """Count a runner that begins to work on the batch. Its runner alone may.

        Returns:
            How many have begun since the batch last got further, this one included.
        """
        answered = batch.request_counts.completed + batch.request_counts.failed
        before = self._attempts().get(batch.id, Attempts(0, answered))
        now = Attempts(1, answered) if answered > before.answered else Attempts(before.count + 1, before.answered)
        self._folder.write(_attempts(batch.id, now), b"")
        if before.count:
            self._folder.delete(_attempts(batch.id, before))
        return now.count

    def close(self, batch: Batch) -> None:
        """Nobody has to work on the batch any more: clear away what was for that only."""
        for name in self._folder.names("attempts"):
            if name.startswith(f"{batch.id}."):
                self._folder.delete(f"attempts/{name}")
        self._folder.delete_folder(_job(batch.id))
        self._folder.delete(f"cancellations/{batch.id}")
        self._folder.delete(_mark(batch))

    def job_folder(self, batch_id: str) -> Folder:
        """Where the work on a batch lies until it has ended."""
        return Folder(self._folder.address(_job(batch_id)))

    def unfinished(self) -> list[Unfinished]:
        """The batches that have not ended, the oldest first."""
        marks = [name.partition(".") for name in self._folder.names("unfinished")]
        return [Unfinished(batch_id, int(expires_at)) for batch_id, _, expires_at in marks]

    def due(self, most: int) -> list[str]:
        """Ids of the batches that somebody has to work on now.

        These are the `most` oldest, so that routers agree on them without a word, and those that only have to be ended.
        Batches whose runner died do not take the last place from others.
        """
        unfinished, cancelled = self.unfinished(), set(self._folder.names("cancellations"))
        ending = [entry for entry in unfinished if entry.id in cancelled or entry.expires_at <= self.now()]
        working = [entry for entry in unfinished if entry not in ending]
        attempts = self._attempts()
        failing = [entry for entry in working if attempts.get(entry.id, Attempts()).has_failed]
        if len(failing) < len(working):
            left_out = failing[max(1, most - 1) :]
            working = [entry for entry in working if entry not in left_out]
        return [entry.id for entry in [*working[:most], *ending]]

    def inputs(self) -> dict[str, str]:
        """Ids of the files that unfinished batches are made of, each with the id of its batch."""
        found = [self._find(entry.id) for entry in self.unfinished()]
        return {batch.input_file_id: batch.id for batch in found if batch is not None and not batch.has_ended}

    def forget_ended(self, most: int) -> None:
        """Forget the oldest of the batches that have ended, so that no more than `most` are remembered."""
        unfinished = {entry.id for entry in self.unfinished()}
        # Listed after the marks, which come first and go last: what has none here has ended.
        ended = [i for name in self._folder.names("progress") if (i := name.removesuffix(".json")) not in unfinished]
        for batch_id in ended[: max(0, len(ended) - most)]:
            if (batch := self._find(batch_id)) is not None and batch.has_ended:
                self._folder.delete(f"batches/{batch_id}.json")
                self._folder.delete(f"progress/{batch_id}.json")

    def forget_stillborn(self) -> None:
        """Take away the marks of batches that were never written down."""
        for entry in self.unfinished():
            if made_at(entry.id) < self.now() - _MAKING_S and self._find(entry.id) is None:
                self._folder.delete(f"unfinished/{entry.id}.{entry.expires_at}")

    def _attempts(self) -> dict[str, Attempts]:
        """Of each batch that somebody works on. A runner may have died between two marks: the latest counts."""
        found: dict[str, Attempts] = {}
        for name in self._folder.names("attempts"):
            batch_id, count, answered = name.split(".")
            latest = found.get(batch_id, Attempts())
            entry = Attempts(int(count), int(answered))
            found[batch_id] = max(latest, entry, key=lambda each: (each.answered, each.count))
        return found

    def _find(self, batch_id: str) -> Batch | None:
        """The batch as it stands: cancelled by a client, as far as its runner says, or as it was made."""
        for place in ("progress", "batches"):
            try:
                batch = Batch.model_validate_json(self._folder.read(f"{place}/{batch_id}.json"))
            except FileNotFoundError:
                continue
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
