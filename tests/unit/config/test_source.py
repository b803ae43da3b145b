"""What a source may say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rayllm.config import BucketSource, ExtraFile
from rayllm.config.source import S3Options


def test_options_of_the_aws_cli_in_both_spellings() -> None:
    args = ("--region=eu-west-1", "--endpoint-url", "http://x?a=b", "--profile", "p=q", "--no-sign-request")
    source = BucketSource(bucket_uri="s3://b/m", s3_sync_args=args)
    assert source.s3_options == S3Options(
        region="eu-west-1", endpoint_url="http://x?a=b", profile="p=q", no_sign_request=True
    )


BROKER = {"create_aws_credentials_url": "http://x"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"s3_sync_args": ["--exclude", "*"]}, "`--exclude` is not supported; use --region"),
        ({"s3_sync_args": ["--region"]}, "`--region` needs a value after it"),
        ({"s3_aws_credentials": BROKER, "anonymous": True}, "anonymous access exclude each other"),
        ({"s3_aws_credentials": BROKER, "s3_sync_args": ["--no-sign-request"]}, "exclude each other"),
        ({"s3_aws_credentials": BROKER, "bucket_uri": "s3://anonymous@b/m"}, "exclude each other"),
        ({"bucket_uri": "gs://b/m", "s3_sync_args": ["--region", "x"]}, "`s3_sync_args` is for s3:// sources"),
        ({"bucket_uri": "gs://b/m", "s3_aws_credentials": BROKER}, "`s3_aws_credentials` is for s3:// sources"),
        ({"bucket_uri": "https://b/m"}, "must begin with s3://bucket or gs://bucket"),
    ],
)
def test_what_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BucketSource.model_validate({"bucket_uri": "s3://b/m", **given})
    assert expected in str(caught.value)


@pytest.mark.parametrize("path", ["..", "../x", "a/../x", "/a/..", ""])
def test_extra_files_stay_where_they_are_told(path: str) -> None:
    with pytest.raises(ValidationError, match=r"must be a path without `\.\.`"):
        ExtraFile(bucket_uri="s3://b/x", destination_path=path)
