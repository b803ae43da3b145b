"""S3 buckets, and buckets of any service with S3's API.

boto3 finds credentials, region and endpoint (`AWS_*` variables, profiles, instance and pod roles), lists objects and
signs URLs. pyarrow's file system gets the same credentials, region and endpoint.
Source: https://boto3.amazonaws.com/v1/documentation/api/latest/guide/configuration.html
"""

import os
import re
import threading
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rayllm.config import BucketSource
from rayllm.core.errors import SourceError
from rayllm.sources.buckets.aws_broker import request_credentials
from rayllm.sources.buckets.bucket import Bucket
from rayllm.sources.errors import ChangedError, UnreachableError
from rayllm.sources.items import Checksum, Item, Location

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_ATTEMPTS = 4
_TIMEOUT_S = 20
_URL_EXPIRES_S = 3600
# Checksum algorithms of S3, cheapest first. The first is computed by the extra rayllm[crc64].
_CHECKSUMS = ("crc64nvme", "crc32c", "crc32", "sha256", "sha1", "md5")[0 if find_spec("awscrt") else 1 :]
_DENIED = {"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
_KMS = {"aws:kms", "aws:kms:dsse"}
# botocore's credential providers whose credentials expire, and which pyarrow implements as well.
_RENEWED_BY_ARROW = {"assume-role-with-web-identity", "container-role", "custom-process", "iam-role", "sso"}


class S3Bucket(Bucket):
    """An S3 bucket. Without any credentials, requests are not signed."""

    scheme = "s3"

    def __init__(self, name: str, source: BucketSource) -> None:
        super().__init__(name, source)
        self._options = source.s3_options
        self._broker = source.s3_aws_credentials
        self._is_anonymous = source.anonymous or source.s3_options.no_sign_request
        self._region: str | None = None
        """The bucket's region, once S3 has redirected a request there."""
        self._lock = threading.Lock()
        self._connect()

    def list_objects(self, prefix: str) -> list[Item]:
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=prefix)
            entries = [entry for page in pages for entry in page.get("Contents", ())]
        except Exception as error:
            raise self._translated(error, self.uri(prefix)) from None
        return [Item(entry["Key"], entry["Key"], entry["Size"], entry["ETag"]) for entry in entries]

    def locate(self, key: str, version: str) -> Location:
        """Get a presigned URL, to be requested with `If-Match`, and the checksum that S3 keeps."""
        try:
            with self._lock:
                # The broker's credentials are about to expire.
                if time.time() > self._expires_at - 60:
                    self._connect()
            head = self._client.head_object(Bucket=self._name, Key=key, ChecksumMode="ENABLED")
            url = self._regional_client().generate_presigned_url(
                "get_object", Params={"Bucket": self._name, "Key": key}, ExpiresIn=_URL_EXPIRES_S
            )
        except Exception as error:
            raise self._translated(error, self.uri(key), key) from None
        if head["ETag"] != version:
            raise ChangedError(f"{key} was replaced while it was fetched.")
        return Location(url, {"if-match": version}, self._checksum(head), self._ca_bundle())

    def filesystem(self) -> "S3FileSystem":
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        credentials = self._arrow_credentials()
        try:
            headers = self._client.head_bucket(Bucket=self._name)["ResponseMetadata"]["HTTPHeaders"]
        except Exception as error:
            raise self._translated(error, self.uri()) from None
        return S3FileSystem(
            region=headers.get("x-amz-bucket-region") or str(self._client.meta.region_name),
            connect_timeout=_TIMEOUT_S / 2,
            request_timeout=_TIMEOUT_S,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            tls_ca_file_path=self._ca_bundle(),
            **_arrow_endpoint(self._client.meta.endpoint_url),
            **credentials,
        )

    def _connect(self) -> None:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session

        options = self._options
        self._expires_at = float("inf")
        try:
            self._botocore = get_session()
            session = boto3.Session(
                profile_name=options.profile,
                region_name=self._region or options.region,
                botocore_session=self._botocore,
            )
            arguments: dict[str, Any] = {}
            if self._broker:
                arguments, self._expires_at = request_credentials(self._broker)
            is_unsigned = self._is_anonymous or not (arguments or session.get_credentials())
            config = Config(
                # botocore's default for presigned URLs is version 2, which S3 refuses for KMS-encrypted objects.
                signature_version=UNSIGNED if is_unsigned else "s3v4",
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                connect_timeout=_TIMEOUT_S / 2,
                read_timeout=_TIMEOUT_S,
                max_pool_connections=64,
            )
            self._client = session.client("s3", endpoint_url=options.endpoint_url, config=config, **arguments)
            self._client.meta.events.register("before-sign.s3.HeadObject", self._record_region)
            self._client.meta.events.register("before-endpoint-resolution.s3", self._avoid_global_host)
        except (BotoCoreError, ValueError) as error:
            raise SourceError(f"{self.uri()} cannot be reached as configured: {error}") from None

    def _record_region(self, request: Any, **_: Any) -> None:
        if region := request.context.get("signing", {}).get("region"):
            self._region = region

    def _avoid_global_host(self, builtins: dict[str, Any], **_: Any) -> None:
        """Let presigned URLs name the region's host: botocore's global host does not serve every region."""
        if builtins.get("AWS::Region") == "aws-global":
            builtins["AWS::Region"] = self._client.meta.region_name

    def _regional_client(self) -> Any:
        """The client for the bucket's region: S3 redirects requests there, but not presigned URLs."""
        with self._lock:
            region = self._client.meta.region_name
            # boto3's name for "no region".
            region = "us-east-1" if region == "aws-global" else region
            if self._region not in (None, region):
                self._connect()
            return self._client

    def _ca_bundle(self) -> str | None:
        """The certificates that boto3 trusts, from AWS_CA_BUNDLE, else the profile, else REQUESTS_CA_BUNDLE."""
        return self._botocore.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")

    def _checksum(self, head: dict[str, Any]) -> Checksum | None:
        """The cheapest checksum of the whole object that S3 has, if any."""
        etag = head["ETag"].strip('"')
        # A COMPOSITE checksum covers the parts' checksums, not the content.
        if head.get("ChecksumType", "COMPOSITE" if "-" in etag else "FULL_OBJECT") == "FULL_OBJECT":
            for algorithm in _CHECKSUMS:
                value = head.get(f"Checksum{algorithm.upper()}", "-")
                if "-" not in value:
                    return Checksum.from_base64(algorithm, value)
        # An ETag is the MD5 of the object unless it was uploaded in parts or encrypted with a customer's or KMS key.
        # Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
        is_encrypted = head.get("ServerSideEncryption") in _KMS or "SSECustomerAlgorithm" in head
        is_express = self._name.endswith("--x-s3")
        if re.fullmatch(r"[0-9a-f]{32}", etag) and not is_encrypted and not is_express:
            return Checksum("md5", etag)
        return None

    def _arrow_credentials(self) -> dict[str, Any]:
        """Arguments for pyarrow: keys that do not expire, or none if pyarrow finds and renews them by itself."""
        credentials = None if self._is_anonymous else self._botocore.get_credentials()
        if credentials is None:
            return {"anonymous": True}
        if credentials.method in _RENEWED_BY_ARROW:
            return {}
        if hasattr(credentials, "refresh_needed"):
            raise SourceError(
                f"{self.uri()}: credentials from `{credentials.method}` expire and cannot be renewed while files are "
                "written; use access keys, a role of the instance or pod, or a web identity."
            )
        keys = credentials.get_frozen_credentials()
        return {"access_key": keys.access_key, "secret_key": keys.secret_key, "session_token": keys.token}

    def _translated(self, error: Exception, uri: str, key: str = "") -> SourceError:
        from botocore.exceptions import ClientError, ConnectionError, HTTPClientError, NoCredentialsError

        if isinstance(error, SourceError):
            return error
        if isinstance(error, NoCredentialsError):
            return SourceError(f"{uri}: no AWS credentials were found; set AWS_ACCESS_KEY_ID or AWS_PROFILE.")
        if isinstance(error, ClientError):
            return self._refusal(error.response, uri, key)
        if isinstance(error, HTTPClientError | ConnectionError):
            host = urlsplit(self._client.meta.endpoint_url).netloc.rpartition("@")[2]
            return UnreachableError(f"{uri} cannot be reached at {host}: {type(error).__name__}")
        return SourceError(f"{uri} cannot be read: {type(error).__name__}: {error}")

    def _refusal(self, response: Any, uri: str, key: str) -> SourceError:
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(response.get("Error", {}).get("Code", status))
        if code == "NoSuchBucket" or (status == 404 and not key):
            return SourceError(f"{uri}: there is no bucket `{self._name}`; check its name and the endpoint.")
        if code in _DENIED or status in (401, 403):
            return SourceError(f"{uri}: access denied ({code}); check the credentials and the bucket's policy.")
        if status == 404:
            return ChangedError(f"{key} was deleted while it was fetched.")
        if status >= 500 or status == 429:
            return UnreachableError(f"{uri} answers {status} ({code})")
        return SourceError(f"{uri} cannot be read: {code}: {response.get('Error', {}).get('Message', '')}")


def _arrow_endpoint(url: str) -> dict[str, Any]:
    """Arguments for pyarrow to reach the endpoint. It derives AWS's own endpoints from the region."""
    parts = urlsplit(url)
    arguments: dict[str, Any] = {}
    if not (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        arguments["endpoint_override"] = url
    if not proxy_bypass(parts.netloc) and (proxy := getproxies().get(parts.scheme)):
        arguments["proxy_options"] = proxy
    return arguments
