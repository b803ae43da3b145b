"""Quotas on stored files and batches."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rayllm.config import BatchesConfig
from rayllm.core.errors import QuotaError
from rayllm.serving.batch_api.storage.file_store import Usage
from rayllm.serving.batch_api.storage.stores import Stores, in_thread

_DELETE = "delete files that are no longer needed (DELETE /v1/files/{id}), or upload with `expires_after`"


class StorageQuota:
    """Limits on the number of files, bytes and batches, with the uploads in progress at this router."""

    def __init__(self, stores: Stores, config: BatchesConfig) -> None:
        self._files, self._batches = stores
        self._config = config
        self._uploads = 0
        self._arriving = 0
        # All uploads since the start: an upload in progress counts those completed after its own check.
        self._arrived = Usage(0, 0)

    @asynccontextmanager
    async def upload(self) -> AsyncIterator[Callable[[int], None]]:
        """Reserve quota for an upload; yields a function to call with the bytes received. Both raise QuotaError."""
        kept, before, size = await in_thread(self._files.usage), self._arrived, 0
        if kept.files + self._uploads + self._arrived.files - before.files >= self._config.max_files:
            raise self._too_many_files()

        def grow(more: int) -> None:
            nonlocal size
            stored = kept.bytes - before.bytes + self._arrived.bytes
            if stored + self._arriving + more > self._config.max_total_bytes:
                raise self._too_many_bytes()
            self._arriving += more
            size += more

        self._uploads += 1
        try:
            yield grow
            self._arrived = Usage(self._arrived.files + 1, self._arrived.bytes + size)
        finally:
            self._uploads -= 1
            self._arriving -= size

    def check_batch(self) -> None:
        """Raise QuotaError if there is no room for a new batch or its output. Blocks."""
        usage, most = self._files.usage(), self._config.max_batches
        if usage.files >= self._config.max_files:
            raise self._too_many_files()
        if usage.bytes >= self._config.max_total_bytes:
            raise self._too_many_bytes()
        if len(self._batches.unfinished()) >= most:
            raise QuotaError(
                f"{most} batches have not ended (router.batches.max_batches): wait for a batch to end, or cancel "
                "one (POST /v1/batches/{id}/cancel)."
            )

    def _too_many_files(self) -> QuotaError:
        return QuotaError(f"{self._config.max_files} files are kept (router.batches.max_files): {_DELETE}.", "file")

    def _too_many_bytes(self) -> QuotaError:
        most = self._config.max_total_bytes
        return QuotaError(
            f"There is no room for more than {most} bytes of files (router.batches.max_total_bytes): {_DELETE}.", "file"
        )
