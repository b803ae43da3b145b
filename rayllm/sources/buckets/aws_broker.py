"""Client for a credential broker: an HTTP service of the operator that issues temporary AWS credentials."""

import json
import os
import urllib.request
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from rayllm.config import AwsCredentials
from rayllm.core.errors import SourceError
from rayllm.sources.errors import UnreachableError

_TIMEOUT_S = 20
# boto3's argument → field names in use: AWS's environment variables, or those of AWS's own credential services.
_FIELDS = {
    "aws_access_key_id": ("AWS_ACCESS_KEY_ID", "AccessKeyId"),
    "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY", "SecretAccessKey"),
    "aws_session_token": ("AWS_SESSION_TOKEN", "SessionToken", "Token"),
}


def request_credentials(config: AwsCredentials) -> tuple[dict[str, str], float]:
    """Request credentials by POST, with the bearer token from the configured environment variable.

    Returns:
        Keyword arguments for a boto3 client, and the expiry in seconds since the epoch (infinity if not given).

    Raises:
        SourceError: the broker refused, or its response holds no credentials.
        UnreachableError: the broker did not respond.
    """
    headers = {}
    if name := config.auth_token_env_variable:
        if not os.environ.get(name):
            raise SourceError(f"s3_aws_credentials: the environment variable `{name}` is not set on this node.")
        headers["authorization"] = f"Bearer {os.environ[name]}"
    request = urllib.request.Request(config.create_aws_credentials_url, data=b"", method="POST", headers=headers)
    # For messages: without user info and query, which may be secret.
    parts = urlsplit(config.create_aws_credentials_url)
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            payload = json.load(response)
    except HTTPError as error:
        error.close()
        if error.code >= 500:
            raise UnreachableError(f"s3_aws_credentials: {url} answered {error.code}") from None
        message = f"s3_aws_credentials: {url} answered {error.code}; check the address and the token."
        raise SourceError(message) from None
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"s3_aws_credentials: {url} cannot be reached: {error}") from None
    except ValueError:
        payload = None
    return _client_arguments(payload, url), _expiry(payload)


def _client_arguments(payload: Any, url: str) -> dict[str, str]:
    values = payload if isinstance(payload, dict) else {}
    found = {argument: next(filter(None, map(values.get, names)), None) for argument, names in _FIELDS.items()}
    arguments = {argument: str(value) for argument, value in found.items() if value}
    if not arguments.keys() >= {"aws_access_key_id", "aws_secret_access_key"}:
        raise SourceError(f"s3_aws_credentials: {url} answered without AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
    return arguments


def _expiry(payload: dict[str, Any]) -> float:
    try:
        expiry = datetime.fromisoformat(str(payload["Expiration"]))
    except (KeyError, ValueError):
        return float("inf")
    return (expiry if expiry.tzinfo else expiry.replace(tzinfo=UTC)).timestamp()
