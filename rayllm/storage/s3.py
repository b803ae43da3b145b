"""S3 buckets as a file system of Arrow's.

boto3's own library says who asks and where, as for models: `AWS_*` variables, profiles, instance and pod roles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rayllm.errors import StorageError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_TIMEOUT_S = 20
_TRIES = 4
# Ways to credentials that end and are renewed, which Arrow goes itself.
_RENEWED_BY_ARROW = {"assume-role-with-web-identity", "container-role", "custom-process", "iam-role", "sso"}


def s3_filesystem(bucket: str) -> S3FileSystem:
    """The file system in which the bucket is the first part of a path.

    Raises:
        StorageError: the bucket cannot be had; the message says why.
    """
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import get_session
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    session = get_session()
    try:
        who = _credentials(session, bucket)
        signature = UNSIGNED if "anonymous" in who else "s3v4"
        retries = {"mode": "standard", "total_max_attempts": _TRIES}
        config = Config(
            signature_version=signature, retries=retries, connect_timeout=_TIMEOUT_S / 2, read_timeout=_TIMEOUT_S
        )
        client = session.create_client("s3", config=config)
        region = _region(client, bucket)
    except ClientError as error:
        raise StorageError(_refusal(bucket, error.response)) from None
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"s3://{bucket} cannot be reached as configured: {error}") from None
    return S3FileSystem(
        region=region,
        connect_timeout=_TIMEOUT_S / 2,
        request_timeout=_TIMEOUT_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        tls_ca_file_path=session.get_config_variable("ca_bundle"),
        **_server(client.meta.endpoint_url),
        **who,
    )


def _credentials(session: Any, bucket: str) -> dict[str, Any]:
    """What Arrow is told of who asks: keys that do not end, nothing where it finds them itself, or that nobody does."""
    found = session.get_credentials()
    if found is None:
        return {"anonymous": True}
    if found.method in _RENEWED_BY_ARROW:
        return {}
    if hasattr(found, "refresh_needed"):
        raise StorageError(
            f"s3://{bucket}: credentials of the kind `{found.method}` end, and cannot be renewed while files are "
            "written; use keys, a role of the instance or pod, or a web identity."
        )
    keys = found.get_frozen_credentials()
    return {"access_key": keys.access_key, "secret_key": keys.secret_key, "session_token": keys.token}


def _region(client: Any, bucket: str) -> str:
    """Where the bucket is, which also shows that it is there and may be looked into."""
    headers: dict[str, str] = client.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
    return headers.get("x-amz-bucket-region") or str(client.meta.region_name)


def _server(endpoint: str) -> dict[str, Any]:
    """How Arrow reaches the server: AWS's own it finds by the region, other ones and proxies it is told."""
    url = urlsplit(endpoint)
    told: dict[str, Any] = {}
    if not (url.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        told["endpoint_override"] = endpoint
    if not proxy_bypass(url.netloc) and (proxy := getproxies().get(url.scheme)):
        told["proxy_options"] = proxy
    return told


def _refusal(bucket: str, response: dict[str, Any]) -> str:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status == 404:
        return f"s3://{bucket}: there is no such bucket; check its name and the endpoint."
    if status in (401, 403):
        return f"s3://{bucket}: access denied ({status}); check the credentials and the bucket's policy."
    return f"s3://{bucket} cannot be reached: it answers {status}."
