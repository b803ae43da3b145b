"""Google Cloud Storage buckets.

Credentials are Google's application default credentials. Without any, or with `anonymous`, requests are anonymous.
`STORAGE_EMULATOR_HOST` selects another server.
Source: https://cloud.google.com/docs/authentication/application-default-credentials
"""

import os
import threading
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from rayllm.config import BucketSource
from rayllm.core.errors import SourceError
from rayllm.sources.buckets.bucket import Bucket
from rayllm.sources.errors import UnreachableError
from rayllm.sources.items import Checksum, Item, Location

if TYPE_CHECKING:
    from pyarrow.fs import GcsFileSystem

_TIMEOUT_S = 20
_RETRY_FOR_S = 45
_READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"


class GcsBucket(Bucket):
    scheme = "gs"

    def __init__(self, name: str, source: BucketSource) -> None:
        super().__init__(name, source)
        self._lock = threading.Lock()
        self._emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        self._credentials = self._default_credentials(source.anonymous)

    def list_objects(self, prefix: str) -> list[Item]:
        from google.cloud.storage.retry import DEFAULT_RETRY

        retry = DEFAULT_RETRY.with_timeout(_RETRY_FOR_S)
        try:
            blobs = list(self._client.list_blobs(self._name, prefix=prefix, timeout=_TIMEOUT_S, retry=retry))
        except Exception as error:
            raise self._translated(error, self.uri(prefix)) from None
        return [
            Item(
                blob.name,
                blob.name,
                blob.size,
                str(blob.generation),
                Checksum.from_base64("crc32c", blob.crc32c) if blob.crc32c else None,
            )
            for blob in blobs
        ]

    def locate(self, key: str, version: str) -> Location:
        # With this header, gzip-encoded objects are sent as stored, as their checksum requires.
        headers = {"accept-encoding": "gzip"}
        blob = self._client.bucket(self._name).blob(key)
        query = urlencode({"alt": "media", "generation": version})
        try:
            with self._lock:
                if self._credentials and not self._credentials.valid:
                    from google.auth.transport.requests import Request

                    self._credentials.refresh(Request())
                if self._credentials:
                    self._credentials.apply(headers)
        except Exception as error:
            raise self._translated(error, self.uri(key)) from None
        return Location(f"{self._client.api_endpoint}/download/storage/v1{blob.path}?{query}", headers)

    def filesystem(self) -> "GcsFileSystem":
        from pyarrow.fs import FileType, GcsFileSystem

        options: dict[str, Any] = {} if self._credentials else {"anonymous": True}
        if self._emulator:
            scheme, _, host = self._emulator.rpartition("://")
            options |= {"scheme": scheme or "http", "endpoint_override": host.rstrip("/")}
        filesystem = GcsFileSystem(retry_time_limit=timedelta(seconds=_RETRY_FOR_S), **options)
        try:
            exists = filesystem.get_file_info(self._name).type != FileType.NotFound
        except OSError as error:
            raise UnreachableError(f"{self.uri()} cannot be reached: {error}") from None
        if not exists:
            raise self._missing(self.uri())
        return filesystem

    def _default_credentials(self, anonymous: bool) -> Any:
        """Application default credentials; None for anonymous requests."""
        if anonymous or self._emulator:
            return None
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError

        try:
            return google.auth.default(scopes=[_READ_ONLY])[0]
        except DefaultCredentialsError as error:
            if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
                raise SourceError(f"{self.uri()}: GOOGLE_APPLICATION_CREDENTIALS cannot be used: {error}") from None
            return None

    @cached_property
    def _client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        credentials = self._credentials or AnonymousCredentials()  # type: ignore[no-untyped-call]
        # The project matters for new buckets only.
        return Client(project="none", credentials=credentials)

    def _missing(self, uri: str) -> SourceError:
        return SourceError(f"{uri}: there is no bucket `{self._name}`; check its name.")

    def _translated(self, error: Exception, uri: str) -> SourceError:
        from google.api_core import exceptions
        from google.auth.exceptions import GoogleAuthError, TransportError
        from requests import RequestException

        transient = exceptions.ServerError, exceptions.TooManyRequests, exceptions.RetryError, TransportError
        if isinstance(error, (*transient, RequestException, OSError)):
            return UnreachableError(f"{uri} cannot be reached: {type(error).__name__}")
        if isinstance(error, exceptions.NotFound):
            return self._missing(uri)
        if isinstance(error, exceptions.Unauthorized | exceptions.Forbidden):
            return SourceError(
                f"{uri}: access denied ({error.code}); check the credentials and the bucket's IAM policy."
            )
        if isinstance(error, GoogleAuthError):
            return SourceError(f"{uri}: Google refused the credentials: {error}")
        return SourceError(f"{uri} cannot be read: {type(error).__name__}: {error}")
