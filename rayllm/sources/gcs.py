"""Folders of Google Cloud Storage buckets.

Credentials are Google's application default ones; without any, and where `anonymous` is set, none are sent. The
client's `STORAGE_EMULATOR_HOST` leads to another server.
Source: https://cloud.google.com/docs/authentication/application-default-credentials
"""

from __future__ import annotations

import os
import threading
from typing import Any
from urllib.parse import urlencode

from rayllm.config import BucketSource
from rayllm.errors import SourceError
from rayllm.sources.bucket import BucketStore
from rayllm.sources.checksum import from_base64
from rayllm.sources.faults import UnreachableError
from rayllm.sources.items import Item, Target, checked_path

_TIMEOUT_S = 20
_RETRY_FOR_S = 45


class GcsStore(BucketStore):
    """The objects below one prefix of a bucket.

    Args:
        source: the folder.
    """

    def __init__(self, source: BucketSource) -> None:
        super().__init__(source)
        self._lock = threading.Lock()
        self._credentials, self._client = self._connect(source.anonymous)

    def locate(self, item: Item) -> Target:
        """The object's address at its generation."""
        # Objects that were stored compressed come as they are stored, and as their checksum says.
        headers = {"accept-encoding": "gzip"}
        blob = self._client.bucket(self._bucket).blob(item.key)
        query = urlencode({"alt": "media", "generation": item.version})
        try:
            with self._lock:
                if not self._credentials.valid:
                    from google.auth.transport.requests import Request

                    self._credentials.refresh(Request())
                self._credentials.apply(headers)
        except Exception as error:
            raise self._explained(error) from None
        return Target(f"{self._client.api_endpoint}/download/storage/v1{blob.path}?{query}", headers)

    def _page_through(self, prefix: str, folder: str) -> list[Item]:
        return [
            Item(
                checked_path(blob.name.removeprefix(folder), self.where),
                blob.name,
                blob.size,
                str(blob.generation),
                from_base64("crc32c", blob.crc32c) if blob.crc32c else None,
            )
            for blob in self._blobs(prefix)
            # Consoles make empty objects to show a folder.
            if not blob.name.endswith("/")
        ]

    def _blobs(self, prefix: str, **options: Any) -> Any:
        from google.cloud.storage.retry import DEFAULT_RETRY

        return self._client.list_blobs(
            self._bucket, prefix=prefix, timeout=_TIMEOUT_S, retry=DEFAULT_RETRY.with_timeout(_RETRY_FOR_S), **options
        )

    def _connect(self, anonymous: bool) -> tuple[Any, Any]:
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud.storage import Client

        credentials: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
        project = None
        if not anonymous and not os.environ.get("STORAGE_EMULATOR_HOST"):
            try:
                credentials, project = google.auth.default(
                    scopes=["https://www.googleapis.com/auth/devstorage.read_only"]
                )
            except DefaultCredentialsError as error:
                if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
                    raise SourceError(f"{self.where}: GOOGLE_APPLICATION_CREDENTIALS cannot be used: {error}") from None
        return credentials, Client(project=project or "none", credentials=credentials)

    def _explained(self, error: Exception) -> SourceError:
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError, TransportError
        from requests import RequestException

        if isinstance(error, SourceError):
            return error
        trouble = exceptions.ServerError, exceptions.TooManyRequests, exceptions.RetryError, TransportError
        if isinstance(error, (*trouble, RequestException, OSError)):
            return UnreachableError(f"{self.where} cannot be reached: {type(error).__name__}")
        if isinstance(error, exceptions.NotFound):
            return SourceError(f"{self.where}: there is no bucket `{self._bucket}`; check its name.")
        if isinstance(error, exceptions.Unauthorized | exceptions.Forbidden):
            return SourceError(
                f"{self.where}: access denied ({error.code}); check the credentials and the bucket's IAM."
            )
        if isinstance(error, GoogleAuthError):
            return SourceError(f"{self.where}: Google refuses the credentials: {error}")
        return SourceError(f"{self.where} cannot be read: {type(error).__name__}: {error}")
