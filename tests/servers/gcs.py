"""A Google Cloud Storage server: gcp-storage-emulator in a subprocess."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers.process import ProcessServer

with warnings.catch_warnings():
    # Google's library asks for a package that only its gRPC clients use.
    warnings.simplefilter("ignore", ImportWarning)
    from google.api_core.client_options import ClientOptions
    from google.api_core.exceptions import Conflict
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

_EMULATOR = Path(__file__).with_name("gcs_emulator.py")


class GcsServer(ProcessServer):
    """A context manager; buckets are in memory."""

    def __init__(self) -> None:
        super().__init__(lambda port: [str(_EMULATOR), str(port)])

    def client(self) -> Any:
        """Google's client for this server, without credentials."""
        options = ClientOptions(api_endpoint=self.url)
        return storage.Client(project="testing", credentials=AnonymousCredentials(), client_options=options)

    def put(self, bucket: str, objects: dict[str, bytes | Path]) -> None:
        """Store objects by name, creating the bucket if necessary."""
        client = self.client()
        with suppress(Conflict):
            client.create_bucket(bucket)
        for name, content in objects.items():
            body = content if isinstance(content, bytes) else content.read_bytes()
            client.bucket(bucket).blob(name).upload_from_string(body, content_type="application/octet-stream")
        client.close()
