"""pyarrow file systems of S3 buckets: credentials, endpoints and proxies."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.core.errors import StorageError
from rayllm.sources.storage import Folder, open_folder
from tests.servers.faults import FaultProxy
from tests.servers.listener import Handler, Listener
from tests.servers.s3 import S3Server


@pytest.fixture
def bucket(s3: S3Server, place: str) -> str:
    s3.put(place, {"a": b"content"})
    return f"s3://{place}"


@pytest.fixture
def no_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove all credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


def authorizations(proxy: FaultProxy) -> list[str]:
    """Authorization header of each request."""
    return [seen.authorization or "" for seen in proxy.requests]


def test_access_keys_sign_requests(s3_proxy: FaultProxy, bucket: str) -> None:
    assert Folder(bucket).read("a") == b"content"
    assert len(authorizations(s3_proxy)) > 1
    assert all("Credential=testing/" in text for text in authorizations(s3_proxy))


def test_profile(
    no_credentials: None, s3_proxy: FaultProxy, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = "aws_access_key_id = of-the-profile\naws_secret_access_key = x\nregion = us-east-1\n"
    (tmp_path / "config").write_text(f"[profile mine]\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert Folder(bucket).read("a") == b"content"
    assert all("Credential=of-the-profile/" in text for text in authorizations(s3_proxy))


def test_without_credentials_requests_are_unsigned(no_credentials: None, s3_proxy: FaultProxy, bucket: str) -> None:
    with pytest.raises(StorageError, match=r"/a cannot be read: .*ACCESS_DENIED"):
        Folder(bucket).read("a")
    assert set(authorizations(s3_proxy)) == {""}


def test_assumed_role_is_refused(
    no_credentials: None, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    role = "role_arn = arn:aws:iam::123456789012:role/writer\nsource_profile = base\nregion = us-east-1\n"
    keys = "aws_access_key_id = x\naws_secret_access_key = x\n"
    (tmp_path / "config").write_text(f"[profile mine]\n{role}[profile base]\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    with pytest.raises(StorageError, match=r"credentials from `assume-role` expire .*; use access keys"):
        open_folder(bucket)


def test_http_proxy(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []

    class Proxy(Handler):
        def do_HEAD(self) -> None:
            paths.append(self.path)
            self.reply(200, {"x-amz-bucket-region": "us-east-1"}, b"through the proxy")

        do_GET = do_HEAD

    listener = Listener(Proxy)
    listener.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://store.example.com")
    monkeypatch.setenv("HTTP_PROXY", listener.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    try:
        assert Folder(bucket).read("a") == b"through the proxy"
    finally:
        listener.stop()
    assert {path.split("?")[0] for path in paths} >= {f"http://store.example.com/{bucket[5:]}/a"}


def test_unreachable_endpoint(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"s3://somewhere .* at 127\.0\.0\.1:9: EndpointConnectionError"):
        Folder("s3://somewhere/x").names("")
