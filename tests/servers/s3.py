"""An S3 server: moto's, in a process of its own.

As S3 does: ranges (also `bytes=-5`; 416 past the end), `If-Match` (412), pages of ListObjectsV2, presigned URLs,
versions, 403 for who sends no signature for a private object, and the checksum an object was put with (CRC64NVME,
CRC32C, CRC32, SHA256, SHA1; boto3 sends CRC32 unasked) when HeadObject or GetObject asks for it; none for a range.

Not as S3 does:
- no signature is checked, and no expiry: a wrong key and an old presigned URL are let in, unsigned listing too;
- each connection is closed after its answer (put a `FaultProxy` before it to keep them), which is sent in one piece;
- HeadObject says no `ChecksumType`, and gives a checksum of checksums without its `-2`; GetObject says both;
- `If-Range` is ignored: a range of the new object comes back;
- HeadObject compares `If-Match` with the quotes, so send them; the refusal of a private object has no XML body;
- all regions and accounts are one: no 301 to another region, no throttling.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.servers.process import HOST, ProcessServer

ACCESS_KEY = "testing"
SECRET_KEY = "testing"
REGION = "us-east-1"


class S3Server(ProcessServer):
    """Holds its buckets in memory for as long as it is entered."""

    def __init__(self) -> None:
        super().__init__(lambda port: ["moto.server", "-H", HOST, "-p", str(port)])

    def client(self, **config: Any) -> Any:
        """A boto3 client of this server; `config` is botocore's."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}, **config),
        )

    def put(self, bucket: str, objects: dict[str, bytes | Path], **extra: Any) -> None:
        """Store objects by key, in a bucket made if there is none; `extra` goes with each, as `ChecksumAlgorithm`."""
        client = self.client()
        try:
            client.create_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise
        for key, content in objects.items():
            body = content if isinstance(content, bytes) else content.read_bytes()
            client.put_object(Bucket=bucket, Key=key, Body=body, **extra)
        client.close()
