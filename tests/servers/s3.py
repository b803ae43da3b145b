"""An S3 server (moto) in a child process.

Like S3: ranges (also `bytes=-5`; 416 past the end), `If-Match` (412), pages of ListObjectsV2, presigned URLs,
versions, 403 for unsigned requests of a private object, and the checksum an object was uploaded with (CRC64NVME,
CRC32C, CRC32, SHA256, SHA1; boto3 sends CRC32 by default) when HeadObject or GetObject asks for it; none for a range.

Unlike S3:
- signatures and expiry are not checked: wrong keys, expired presigned URLs and unsigned listings are accepted;
- each connection is closed after one response (put a `FaultProxy` in front to keep it), which is sent at once;
- HeadObject has no `ChecksumType`, and a composite checksum without its `-2`; GetObject has both;
- `If-Range` is ignored: a range of the new object is returned;
- HeadObject compares `If-Match` including quotes; the 403 of a private object has no XML body;
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
    """Keeps its buckets in memory while entered."""

    def __init__(self, host: str = HOST) -> None:
        super().__init__(lambda port: ["moto.server", "-H", host, "-p", str(port)], host)

    def client(self, **config: Any) -> Any:
        """A boto3 client for this server; `config` are arguments of botocore's Config."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}, **config),
        )

    def put(self, bucket: str, objects: dict[str, bytes | Path], **extra: Any) -> None:
        """Upload objects by key, creating the bucket; `extra` are arguments of `put_object`."""
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
