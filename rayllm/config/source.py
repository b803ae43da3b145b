"""Where weights and tokenizers come from."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, field_validator

from rayllm.config.base import Frozen


class HubSource(Frozen):
    """A repository of the HuggingFace hub."""

    repo_id: str
    """`organisation/name` on the hub."""
    revision: str | None = None
    """Branch, tag or commit; null is the default branch."""

    @field_validator("repo_id")
    @classmethod
    def _is_repo_id(cls, value: str) -> str:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", value) or ".." in value:
            raise ValueError(
                f"`{value}` is neither a hub id like `organisation/name` nor a path; begin a path with `./` or `/`"
            )
        return value


class LocalSource(Frozen):
    """A folder that every node serving the model can read."""

    path: str
    """Path of the folder."""


class ExtraFile(Frozen):
    """One more file to put beside the model."""

    bucket_uri: str
    """`s3://…` or `gs://…` of the file."""
    destination_path: str
    """Where on the node it goes."""


class AwsCredentials(Frozen):
    """A broker that hands out temporary AWS credentials."""

    create_aws_credentials_url: str
    """Address that answers with the credentials."""
    auth_token_env_variable: str | None = None
    """Environment variable that holds the bearer token for that address."""


class BucketSource(Frozen):
    """A folder of an object store."""

    bucket_uri: str
    """`s3://bucket/prefix` or `gs://bucket/prefix`."""
    extra_files: tuple[ExtraFile, ...] = ()
    """More files that the model needs."""
    s3_sync_args: tuple[str, ...] = ()
    """Options of the old `aws s3 sync` call that still mean something, such as `--region us-west-2`."""
    s3_aws_credentials: AwsCredentials | None = None
    """Where temporary credentials come from."""

    @field_validator("bucket_uri")
    @classmethod
    def _is_bucket(cls, value: str) -> str:
        if not re.match(r"(s3|gs)://[^/]+", value):
            raise ValueError(f"`{value}` must begin with s3://bucket or gs://bucket")
        return value


def _from_text(value: Any) -> Any:
    """The mapping that a short text stands for; mappings pick their class by the key they hold."""
    if isinstance(value, str):
        if re.match(r"(s3|gs)://", value):
            return BucketSource(bucket_uri=value)
        if re.match(r"[./~]", value):
            return LocalSource(path=value)
        return HubSource(repo_id=value)
    if isinstance(value, dict):
        for key, source in (("bucket_uri", BucketSource), ("repo_id", HubSource), ("path", LocalSource)):
            if key in value:
                return source.model_validate(value)
        raise ValueError("must be a hub id, a path, an s3:// or gs:// address, or a mapping with `bucket_uri`")
    return value


_AnySource = HubSource | LocalSource | BucketSource
Source = Annotated[_AnySource, BeforeValidator(_from_text, json_schema_input_type=str | _AnySource)]
"""A hub id, a path that begins with `.`, `/` or `~`, an `s3://` or `gs://` address, or one of the mappings above."""
