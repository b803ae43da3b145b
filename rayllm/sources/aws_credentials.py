"""Temporary AWS credentials from a broker: an address of the user's that hands them out."""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from rayllm.config import AwsCredentials
from rayllm.errors import SourceError
from rayllm.sources.faults import UnreachableError

_TIMEOUT_S = 20
# boto3's names for the keys → the names that brokers use: environment variables, or those of AWS's own services.
_NAMES = {
    "aws_access_key_id": ("AWS_ACCESS_KEY_ID", "AccessKeyId"),
    "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY", "SecretAccessKey"),
    "aws_session_token": ("AWS_SESSION_TOKEN", "SessionToken", "Token"),
}


def ask_broker(config: AwsCredentials) -> tuple[dict[str, str], float]:
    """Credentials as arguments of a boto3 client, and the time at which they end in seconds since the epoch.

    The broker is asked by POST, with the bearer token that the configured variable holds, and answers with JSON.

    Raises:
        SourceError: it refuses, or its answer holds no credentials.
        UnreachableError: it does not answer.
    """
    request = urllib.request.Request(
        config.create_aws_credentials_url, data=b"", method="POST", headers=_headers(config)
    )
    # Without what may be secret in it.
    parts = urlsplit(config.create_aws_credentials_url)
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            answer = json.load(reply)
    except HTTPError as error:
        error.close()
        if error.code >= 500:
            raise UnreachableError(f"s3_aws_credentials: {url} answered {error.code}") from None
        message = f"s3_aws_credentials: {url} answered {error.code}; check the address and the token."
        raise SourceError(message) from None
    except (OSError, HTTPException) as error:
        raise UnreachableError(f"s3_aws_credentials: {url} cannot be reached: {error}") from None
    except ValueError:
        answer = None
    return _keys(answer, url), _end(answer)


def _headers(config: AwsCredentials) -> dict[str, str]:
    name = config.auth_token_env_variable
    if not name:
        return {}
    if not os.environ.get(name):
        raise SourceError(f"s3_aws_credentials: the environment variable `{name}` is not set on this node.")
    return {"authorization": f"Bearer {os.environ[name]}"}


def _keys(answer: Any, url: str) -> dict[str, str]:
    found = {}
    for ours, theirs in _NAMES.items():
        for name in theirs:
            if isinstance(answer, dict) and answer.get(name):
                found[ours] = str(answer[name])
                break
    if not found.keys() >= {"aws_access_key_id", "aws_secret_access_key"}:
        raise SourceError(f"s3_aws_credentials: {url} answered without AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
    return found


def _end(answer: dict[str, Any]) -> float:
    try:
        end = datetime.fromisoformat(str(answer["Expiration"]))
    except (KeyError, ValueError):
        return float("inf")
    return (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
