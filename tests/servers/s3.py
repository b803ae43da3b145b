"""An S3 server: moto's, in a subprocess."""

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
    """A context manager; buckets are in memory."""

    def __init__(self) -> None:
        super().__init__(lambda port: ["moto.server", "-H", HOST, "-p", str(port)])

    def client(self, **config: Any) -> Any:
        """A boto3 client for this server; `config` is botocore's."""
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
