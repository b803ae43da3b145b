"""Requests to a broker of temporary AWS credentials, and its responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from rayllm.config import AwsCredentials, BucketSource
from rayllm.core.errors import SourceError
from rayllm.sources import fetch
from rayllm.sources.buckets.aws_broker import request_credentials
from rayllm.sources.stores import BucketStore
from tests.servers.faults import FaultProxy
from tests.servers.listener import Handler, Listener
from tests.servers.s3 import S3Server
from tests.unit.sources.downloads import MODEL, contents

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "brokered", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
SERVICE = {"AccessKeyId": "brokered", "SecretAccessKey": "s", "Token": "t", "Expiration": "2040-01-01T00:00:00Z"}
KEYS = {"aws_access_key_id": "brokered", "aws_secret_access_key": "s", "aws_session_token": "t"}


class Broker(Listener):
    """Responds to every POST with `answer`, and records the tokens sent."""

    def __init__(self) -> None:
        super().__init__(partial(_Broker, self))
        self.status = 200
        self.answer: Any = ENVIRONMENT
        self.tokens: list[str | None] = []

    def config(self, **more: str) -> AwsCredentials:
        return AwsCredentials(create_aws_credentials_url=f"{self.url}/keys?secret=hidden", **more)


class _Broker(Handler):
    def __init__(self, broker: Broker, *args: object) -> None:
        self._broker = broker
        super().__init__(*args)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        self.body()
        self._broker.tokens.append(self.headers.get("authorization"))
        answer = self._broker.answer
        self.reply(self._broker.status, {}, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


@pytest.fixture
def broker() -> Iterator[Broker]:
    listener = Broker()
    listener.start()
    yield listener
    listener.stop()


@pytest.mark.parametrize("answer", [ENVIRONMENT, SERVICE], ids=["environment", "service"])
def test_response_formats(broker: Broker, answer: dict[str, str]) -> None:
    broker.answer = answer
    keys, end = request_credentials(broker.config())
    assert keys == KEYS
    assert end == (datetime(2040, 1, 1, tzinfo=UTC).timestamp() if "Expiration" in answer else float("inf"))


def test_expiry_defaults_to_utc(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        broker.answer = {**SERVICE, "Expiration": "2040-01-01T00:00:00"}
        assert request_credentials(broker.config())[1] == datetime(2040, 1, 1, tzinfo=UTC).timestamp()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_bearer_token(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TOKEN", "b")
    request_credentials(broker.config(auth_token_env_variable="BROKER_TOKEN"))
    assert broker.tokens == ["Bearer b"]
    monkeypatch.delenv("BROKER_TOKEN")
    with pytest.raises(SourceError, match="the environment variable `BROKER_TOKEN` is not set on this node"):
        request_credentials(broker.config(auth_token_env_variable="BROKER_TOKEN"))


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (401, b"", "answered 401; check the address and the token"),
        (503, b"", "answered 503"),
        (200, b"<html>", "answered without AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (200, [], "answered without AWS_ACCESS_KEY_ID"),
        (200, {"AccessKeyId": "only"}, "answered without AWS_ACCESS_KEY_ID"),
    ],
)
def test_invalid_responses(broker: Broker, status: int, answer: Any, message: str) -> None:
    broker.status, broker.answer = status, answer
    with pytest.raises(SourceError, match=message) as caught:
        request_credentials(broker.config())
    assert f"{broker.url}/keys" in caught.value.message
    assert "hidden" not in caught.value.message


def test_fetch_uses_brokered_credentials(s3_proxy: FaultProxy, s3: S3Server, place: str, broker: Broker) -> None:
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    source = BucketSource(bucket_uri=f"s3://{place}/m", s3_aws_credentials=broker.config())
    assert contents(fetch(source, "m").folder) == MODEL
    assert all("brokered" in (seen.authorization or seen.query) for seen in s3_proxy.requests)
    assert len(broker.tokens) == 1


def test_expiring_credentials_are_renewed(s3: S3Server, place: str, broker: Broker) -> None:
    s3.put(place, {"m/w": b"1"})
    broker.answer = {**SERVICE, "Expiration": (datetime.now(UTC) + timedelta(seconds=30)).isoformat()}
    store = BucketStore(BucketSource(bucket_uri=f"s3://{place}/m", s3_aws_credentials=broker.config()))
    item = store.files()[0]
    broker.answer = {**SERVICE, "AccessKeyId": "renewed"}
    assert "renewed" in store.locate(item).url
    store.locate(item)
    assert len(broker.tokens) == 2
