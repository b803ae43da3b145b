"""Quotas on stored files and batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rayllm.config import BatchesConfig
from rayllm.errors import QuotaError
from rayllm.serving.batch_api.storage.file_store import Usage
from rayllm.serving.batch_api.storage.stores import Stores, in_thread

_DELETE = "delete files that nobody needs (DELETE /v1/files/{id}), or upload with `expires_after`"


class StorageQuota:
    """Limits on the number of files, bytes and batches.

    Uploads in progress count; each router counts its own.

    Args:
        stores: the stores.
        config: the limits.
    """

    def __init__(self, stores: Stores, config: BatchesConfig) -> None:
        self._files, self._batches = stores
        self._config = config
        self._uploads = 0
        self._arriving = 0
        # All uploads since the start, so that one in progress accounts for those completed after its check.
        self._arrived = Usage(0, 0)

    @asynccontextmanager
    async def upload(self) -> AsyncIterator[Upload]:
        """Reserve quota for an upload as it grows; released at the end of the block.

        Raises:
            QuotaError: there are too many files.
        """
        kept, before = await in_thread(self._files.usage), self._arrived
        if kept.files + self._uploads + self._arrived.files - before.files >= self._config.max_files:
            raise self._too_many_files()
        upload = Upload(self, kept.bytes - before.bytes)
        self._uploads += 1
        try:
            yield upload
            self._arrived = Usage(self._arrived.files + 1, self._arrived.bytes + upload.size)
        finally:
            self._uploads -= 1
            self._arriving -= upload.size

    def take(self, size: int, kept: int) -> None:
        """Reserve `size` more bytes for an upload that started with `kept` bytes stored, net of completed uploads.

        Raises:
            QuotaError: the quota is exhausted.
        """
        if kept + self._arrived.bytes + self._arriving + size > self._config.max_total_bytes:
            raise self._too_many_bytes()
        self._arriving += size

    def check_batch(self) -> None:
        """Refuse another batch if there is no room for it or its output. Blocks.

        Raises:
            QuotaError: the quota is exhausted.
        """
        usage, most = self._files.usage(), self._config.max_batches
        if usage.files >= self._config.max_files:
            raise self._too_many_files()
        if usage.bytes >= self._config.max_total_bytes:
            raise self._too_many_bytes()
        if len(self._batches.unfinished()) >= most:
            raise QuotaError(
                f"{most} batches have not ended (router.batches.max_batches): wait for one, or cancel one that nobody "
                "needs (POST /v1/batches/{id}/cancel)."
            )

    def _too_many_files(self) -> QuotaError:
        return QuotaError(f"{self._config.max_files} files are kept (router.batches.max_files): {_DELETE}.", "file")

    def _too_many_bytes(self) -> QuotaError:
        most = self._config.max_total_bytes
        return QuotaError(
            f"There is no room for more than {most} bytes of files (router.batches.max_total_bytes): {_DELETE}.", "file"
        )


class Upload:
    """The share of one upload; see `StorageQuota.upload`."""

    def __init__(self, quota: StorageQuota, kept: int) -> None:
        self._quota = quota
        self._kept = kept
        self.size = 0

    def grow(self, size: int) -> None:
        """Reserve quota for more bytes received.

        Raises:
            QuotaError: the quota is exhausted.
        """
        self._quota.take(size, self._kept)
        self.size += size
