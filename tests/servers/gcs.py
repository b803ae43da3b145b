"""A Google Cloud Storage server (gcp-storage-emulator) in a child process.

Like the real one: listing with prefix, size, generation, CRC32C and MD5; downloads of the whole or of a range;
404 for a generation that is not current. The emulator itself ignores `generation`, serves one request at a time and
keeps no connections alive: `gcs_emulator.py` fixes that.

Unlike the real one:
- all objects are listed in one page, regardless of `maxResults`;
- `bytes=-5` gives the whole object as 200, and a range past the end an empty 206 instead of 416;
- `ifGenerationMatch` and `If-Match` are ignored; downloads have no ETag and no `X-Goog-Generation`, ranges no
  `X-Goog-Hash`; there is no HEAD (501);
- 404 of a bucket or object has no body; there is no authentication, so there is no 401 or 403.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers.process import ProcessServer

with warnings.catch_warnings():
    # Google's library tries to import a package that only its gRPC clients use.
    warnings.simplefilter("ignore", ImportWarning)
    from google.api_core.client_options import ClientOptions
    from google.api_core.exceptions import Conflict
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

_EMULATOR = Path(__file__).with_name("gcs_emulator.py")


class GcsServer(ProcessServer):
    """Keeps its buckets in memory while entered.

    Set `STORAGE_EMULATOR_HOST` to its `url` for other clients.
    """

    def __init__(self) -> None:
        super().__init__(lambda port: [str(_EMULATOR), str(port)])

    def client(self) -> Any:
        """A client for this server, without credentials."""
        options = ClientOptions(api_endpoint=self.url)
        return storage.Client(project="testing", credentials=AnonymousCredentials(), client_options=options)

    def put(self, bucket: str, objects: dict[str, bytes | Path]) -> None:
        """Upload objects by name, creating the bucket."""
        client = self.client()
        with suppress(Conflict):
            client.create_bucket(bucket)
        for name, content in objects.items():
            body = content if isinstance(content, bytes) else content.read_bytes()
            client.bucket(bucket).blob(name).upload_from_string(body, content_type="application/octet-stream")
        client.close()
