"""Folders of S3 buckets, and of everything that speaks S3's protocol.

boto3 lists, signs and knows where credentials, regions and endpoints come from (`AWS_*` variables, profiles, instance
roles); the bytes are fetched from addresses that it signs.
Source: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/configuration.html
"""

from __future__ import annotations

import re
import threading
import time
from typing import Any

from rayllm.config import BucketSource
from rayllm.errors import SourceError
from rayllm.sources.aws_credentials import ask_broker
from rayllm.sources.bucket import BucketStore
from rayllm.sources.checksum import ALGORITHMS, from_base64
from rayllm.sources.faults import ChangedError, UnreachableError
from rayllm.sources.items import Checksum, Item, Target, checked_path

_TRIES = 4
_TIMEOUT_S = 20
# Seconds that a signed address holds; a part is fetched in far less.
_SIGNED_FOR_S = 3600
_DENIED = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_NO_MD5 = {"aws:kms", "aws:kms:dsse"}


class S3Store(BucketStore):
    """The objects below one prefix of a bucket.

    Args:
        source: the folder, and how to get there.
    """

    def __init__(self, source: BucketSource) -> None:
        super().__init__(source)
        self._source = source
        self._is_anonymous = source.anonymous or source.s3_options.no_sign_request
        self._lock = threading.Lock()
        # Shared with the places below this one, as the client is.
        self._regions: dict[str, str] = {}
        self._client = self._connect()

    def locate(self, item: Item) -> Target:
        """A signed address for the object at its ETag, and the checksum that S3 keeps of it."""
        try:
            self._renew()
            head = self._client.head_object(Bucket=self._bucket, Key=item.key, ChecksumMode="ENABLED")
            url = self._in_region().generate_presigned_url(
                "get_object", Params={"Bucket": self._bucket, "Key": item.key}, ExpiresIn=_SIGNED_FOR_S
            )
        except Exception as error:
            raise self._explained(error, item.key) from None
        if head["ETag"] != item.version:
            raise ChangedError(f"{item.key} was replaced while it was fetched.")
        return Target(url, {"if-match": item.version}, self._checksum(head))

    def _page_through(self, prefix: str, folder: str) -> list[Item]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return [
            Item(
                checked_path(entry["Key"].removeprefix(folder), self.where), entry["Key"], entry["Size"], entry["ETag"]
            )
            for page in pages
            for entry in page.get("Contents", ())
            # Consoles make empty objects to show a folder.
            if not entry["Key"].endswith("/")
        ]

    def _checksum(self, head: dict[str, Any]) -> Checksum | None:
        """The object's checksum, the cheapest first; a checksum of checksums of parts is none of the object."""
        etag = head["ETag"].strip('"')
        is_whole = head.get("ChecksumType", "COMPOSITE" if "-" in etag else "FULL_OBJECT") == "FULL_OBJECT"
        if is_whole:
            for algorithm in ALGORITHMS:
                value = head.get(f"Checksum{algorithm.upper()}", "-")
                if "-" not in value:
                    return from_base64(algorithm, value)
        # An ETag is the MD5 of the object unless it was uploaded in parts or encrypted with a key of KMS's.
        # Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
        encrypted = head.get("ServerSideEncryption") in _NO_MD5 or "SSECustomerAlgorithm" in head
        express = self._bucket.endswith("--x-s3")
        if re.fullmatch(r"[0-9a-f]{32}", etag) and not encrypted and not express:
            return Checksum("md5", etag)
        return None

    def _connect(self) -> Any:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        options = self._source.s3_options
        try:
            session = boto3.Session(
                profile_name=options.profile, region_name=self._regions.get(self._bucket) or options.region
            )
            self._expires_at = float("inf")
            keys: dict[str, Any] = {}
            if self._source.s3_aws_credentials:
                keys, self._expires_at = ask_broker(self._source.s3_aws_credentials)
            is_unsigned = self._is_anonymous or not (keys or session.get_credentials())
            config = Config(
                # Left alone, addresses are signed in the old way, which refuses what KMS has encrypted.
                signature_version=UNSIGNED if is_unsigned else "s3v4",
                retries={"mode": "standard", "total_max_attempts": _TRIES},
                connect_timeout=_TIMEOUT_S / 2,
                read_timeout=_TIMEOUT_S,
                max_pool_connections=64,
            )
            client = session.client("s3", endpoint_url=options.endpoint_url, config=config, **keys)
            client.meta.events.register("before-sign.s3.HeadObject", self._note_region)
            return client
        except (BotoCoreError, ValueError) as error:
            raise SourceError(f"{self.where} cannot be reached as configured: {error}") from None

    def _note_region(self, request: Any, **_: Any) -> None:
        if region := request.context.get("signing", {}).get("region"):
            self._regions[self._bucket] = region

    def _in_region(self) -> Any:
        """The client for the bucket's region: requests find the way there by themselves, addresses do not."""
        with self._lock:
            mine = self._client.meta.region_name
            # What boto3 calls no region at all.
            mine = "us-east-1" if mine == "aws-global" else mine
            if self._regions.get(self._bucket, mine) != mine:
                self._client = self._connect()
            return self._client

    def _renew(self) -> None:
        """Ask the broker for new credentials where the old ones are about to end."""
        with self._lock:
            if time.time() > self._expires_at - 60:
                self._client = self._connect()

    def _explained(self, error: Exception, key: str = "") -> SourceError:
        from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, NoCredentialsError

        if isinstance(error, SourceError):
            return error
        where = f"s3://{self._bucket}/{key}" if key else self.where
        if isinstance(error, NoCredentialsError):
            return SourceError(f"{where}: no AWS credentials were found; set AWS_ACCESS_KEY_ID or AWS_PROFILE.")
        if isinstance(error, ClientError):
            return self._refused(where, error.response, key)
        if isinstance(error, HTTPClientError | ConnectionError):
            return UnreachableError(f"{where} cannot be reached: {type(error).__name__}")
        return SourceError(f"{where} cannot be read: {type(error).__name__}: {error}")

    def _refused(self, where: str, response: Any, key: str) -> SourceError:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(response.get("Error", {}).get("Code", status))
        if code == "NoSuchBucket":
            return SourceError(f"{where}: there is no bucket `{self._bucket}`; check its name and the endpoint.")
        if code in _DENIED or status in (401, 403):
            return SourceError(f"{where}: access denied ({code}); check the credentials and the bucket's policy.")
        if status == 404 and key:
            return ChangedError(f"{key} was removed while it was fetched.")
        if status >= 500 or status == 429:
            return UnreachableError(f"{where} answers {status} ({code})")
        return SourceError(f"{where} cannot be read: {code}: {response.get('Error', {}).get('Message', '')}")
