"""S3 buckets: credentials, endpoints, regions, listing and checksums."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import certifi
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from urllib3 import HTTPResponse

from rayllm.config import BucketSource, ExtraFile
from rayllm.core.errors import SourceError
from rayllm.lora import Adapter
from rayllm.lora.catalog import open_catalog, open_source
from rayllm.sources import fetch
from rayllm.sources.buckets.s3 import S3Bucket
from rayllm.sources.items import Checksum
from rayllm.sources.stores import BucketStore
from tests.servers.faults import FaultProxy
from tests.servers.listener import Handler, Listener
from tests.servers.process import HOST
from tests.servers.s3 import S3Server
from tests.unit.sources.downloads import MODEL, OTHER, WEIGHTS, contents, fetch_entry

X = Adapter("m", "x")


@pytest.fixture
def uri(s3: S3Server, place: str) -> str:
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    return f"s3://{place}/m"


@pytest.fixture
def public(s3: S3Server, uri: str, place: str) -> str:
    """The same URI with public objects; anonymous requests can read nothing else."""
    for name in MODEL:
        s3.client().put_object_acl(Bucket=place, Key=f"m/{name}", ACL="public-read")
    return uri


def signed(proxy: FaultProxy) -> set[bool]:
    """Whether requests were signed."""
    return {"Signature" in seen.query or seen.authorization is not None for seen in proxy.requests}


@pytest.mark.parametrize(
    ("user", "options"),
    [("", {"anonymous": True}), ("", {"s3_sync_args": ("--no-sign-request",)}), ("anonymous@", {})],
    ids=str,
)
def test_anonymous_requests_are_unsigned(s3_proxy: FaultProxy, public: str, user: str, options: dict[str, Any]) -> None:
    uri = public.replace("//", f"//{user}")
    assert contents(fetch(BucketSource(bucket_uri=uri, **options), "m").folder) == MODEL
    assert signed(s3_proxy) == {False}


def test_extra_files_of_a_public_bucket_are_unsigned(
    s3_proxy: FaultProxy, uri: str, public: str, tmp_path: Path
) -> None:
    address = f"{public}/config.json".replace("//", "//anonymous@")
    extras = [ExtraFile(bucket_uri=address, destination_path=path) for path in ("a.json", str(tmp_path / "b.json"))]
    folder = fetch(BucketSource(bucket_uri=uri, extra_files=tuple(extras)), "m").folder
    assert (folder / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes() == MODEL["config.json"]
    assert signed(s3_proxy) == {True, False}


@pytest.mark.parametrize("path", ["adapters", "adapters/x"])
def test_adapters_of_a_public_bucket_are_unsigned(s3_proxy: FaultProxy, s3: S3Server, place: str, path: str) -> None:
    s3.put(place, {"adapters/x/adapter_config.json": b"{}"})
    address = f"s3://anonymous@{place}/{path}"
    s3.client().put_bucket_acl(Bucket=place, ACL="public-read")
    store = open_source(address) if path.endswith("x") else open_catalog(address, "m").candidates(X)[1]
    assert [item.path for item in store.files()] == ["adapter_config.json"]
    assert signed(s3_proxy) == {False}


def test_requests_without_credentials_are_unsigned(
    s3_proxy: FaultProxy, public: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    assert contents(fetch(BucketSource(bucket_uri=public), "m").folder) == MODEL
    assert signed(s3_proxy) == {False}


def test_requests_are_signed(s3_proxy: FaultProxy, uri: str) -> None:
    assert contents(fetch(BucketSource(bucket_uri=uri), "m").folder) == MODEL
    assert signed(s3_proxy) == {True}


def test_private_bucket_denies_anonymous_requests(s3: S3Server, uri: str) -> None:
    with pytest.raises(SourceError, match=r"access denied \(403\); check the credentials and the bucket's policy"):
        fetch(BucketSource(bucket_uri=uri, anonymous=True), "m")


def test_s3_sync_args(s3: S3Server, uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    keys = "aws_access_key_id = of-the-profile\naws_secret_access_key = x\n"
    (tmp_path / "config").write_text(f"[profile mine]\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with FaultProxy(s3.url) as proxy:
        args = ("--profile", "mine", "--region=eu-west-1", "--endpoint-url", proxy.url)
        assert contents(fetch(BucketSource(bucket_uri=uri, s3_sync_args=args), "m").folder) == MODEL
        signatures = [seen.authorization or seen.query for seen in proxy.requests]
    assert all("of-the-profile" in text and "eu-west-1" in text for text in signatures)


def test_missing_profile(s3: S3Server, uri: str) -> None:
    source = BucketSource(bucket_uri=uri, s3_sync_args=("--profile", "nobody"))
    with pytest.raises(SourceError, match=r"cannot be reached as configured: .*nobody"):
        fetch(source, "m")


@pytest.mark.parametrize("algorithm", ["CRC64NVME", "CRC32C", "CRC32", "SHA256", "SHA1"])
def test_stored_checksum_is_used(s3_proxy: FaultProxy, s3: S3Server, place: str, algorithm: str) -> None:
    s3.put(place, {"m/w": WEIGHTS}, ChecksumAlgorithm=algorithm)
    store = BucketStore(BucketSource(bucket_uri=f"s3://{place}/m"))
    checksum = store.locate(store.files()[0]).checksum
    assert checksum
    assert checksum.algorithm == algorithm.lower()
    s3_proxy.fault("flip", "m/w", times=1)
    assert (fetch_entry(f"s3://{place}/m").files / "w").read_bytes() == WEIGHTS


HEADS: list[tuple[dict[str, Any], Checksum | None]] = [
    ({}, Checksum("md5", "0" * 32)),
    ({"ETag": f'"{"0" * 32}-3"'}, None),
    ({"ServerSideEncryption": "aws:kms"}, None),
    ({"ServerSideEncryption": "AES256"}, Checksum("md5", "0" * 32)),
    ({"SSECustomerAlgorithm": "AES256"}, None),
    ({"ChecksumType": "COMPOSITE", "ChecksumCRC32C": "AAAAAA==", "ETag": f'"{"0" * 32}-3"'}, None),
    ({"ChecksumCRC32C": "AAAAAA==-3", "ETag": f'"{"0" * 32}-3"'}, None),
    (
        {"ChecksumType": "FULL_OBJECT", "ChecksumCRC64NVME": "AAAAAAAAAAA=", "ETag": f'"{"0" * 32}-3"'},
        Checksum("crc64nvme", "0" * 16),
    ),
]


@pytest.mark.parametrize(("head", "checksum"), HEADS, ids=lambda value: str(value)[:60])
def test_only_checksums_of_the_whole_object_are_used(
    s3: S3Server, head: dict[str, Any], checksum: Checksum | None
) -> None:
    bucket = S3Bucket("b", BucketSource(bucket_uri="s3://b"))
    assert bucket._checksum({"ETag": f'"{"0" * 32}"', **head}) == checksum


@pytest.mark.parametrize("extra", [{}, {"ChecksumAlgorithm": "CRC32C"}], ids=str)
def test_multipart_upload(s3: S3Server, place: str, extra: dict[str, str]) -> None:
    s3.put(place, {"m/config.json": b"{}"})
    at = {"Bucket": place, "Key": "m/w"}
    upload = s3.client().create_multipart_upload(**at, **extra)["UploadId"]
    big = WEIGHTS * 18
    parts = []
    for number, body in enumerate((big, OTHER), 1):
        part = s3.client().upload_part(**at, UploadId=upload, PartNumber=number, Body=body, **extra)
        sums = {name: value for name, value in part.items() if name.startswith("Checksum") and name != "ChecksumType"}
        parts.append({"ETag": part["ETag"], "PartNumber": number, **sums})
    s3.client().complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": parts})
    assert (fetch_entry(f"s3://{place}/m").files / "w").read_bytes() == big + OTHER


def test_paginated_listing(s3_proxy: FaultProxy, s3: S3Server, place: str) -> None:
    s3.put(place, {f"m/{number}": b"" for number in range(5)})
    bucket = S3Bucket(place, BucketSource(bucket_uri=f"s3://{place}"))

    def two_per_page(params: dict[str, Any], **_: Any) -> None:
        params["MaxKeys"] = 2

    bucket._client.meta.events.register("provide-client-params.s3.ListObjectsV2", two_per_page)
    assert sorted(info.key for info in bucket.list_objects("m/")) == [f"m/{number}" for number in range(5)]
    assert len(s3_proxy.requests) == 3


def test_uri_of_a_single_object(s3: S3Server, place: str) -> None:
    s3.put(place, {"m/w": WEIGHTS, "m/w2": OTHER})
    assert contents(fetch_entry(f"s3://{place}/m/w").files) == {"w": WEIGHTS}


def test_key_with_special_characters(s3: S3Server, place: str) -> None:
    names = {"m/a b+c%20=&é?#.json": b"1"}
    s3.put(place, names)
    assert contents(fetch_entry(f"s3://{place}/m").files) == {name.removeprefix("m/"): b"1" for name in names}


def test_endpoint_refuses_connections(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayllm.sources.buckets.s3._ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"s3://b/m .* at 127\.0\.0\.1:9: EndpointConnectionError; this node has no"):
        fetch(BucketSource(bucket_uri="s3://b/m"), "m")


def test_cached_copy_is_served_if_s3_is_down(s3_proxy: FaultProxy, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayllm.sources.buckets.s3._ATTEMPTS", 1)
    cached = fetch(BucketSource(bucket_uri=uri), "m")
    s3_proxy.fault("status", value=503)
    assert fetch(BucketSource(bucket_uri=uri), "m") == cached


def test_bucket_is_listed_once(s3_proxy: FaultProxy, uri: str) -> None:
    fetch(BucketSource(bucket_uri=uri), "m")
    assert len([seen for seen in s3_proxy.requests if "list-type" in seen.query]) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for this machine, which only signs itself."""
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(certificate.public_bytes(pem) + secret)
    return file


@pytest.fixture
def with_tls(s3: S3Server, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The S3 server behind TLS, with a certificate that nobody trusts."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with FaultProxy(s3.url, context) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        yield


@pytest.mark.parametrize("trusted_by", ["profile", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.usefixtures("with_tls")
def test_downloads_trust_what_listings_trust(
    uri: str, certificate: Path, trusted_by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_text(Path(certifi.where()).read_text())
    # boto3's order: AWS_CA_BUNDLE, the profile, REQUESTS_CA_BUNDLE.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate if trusted_by == "REQUESTS_CA_BUNDLE" else other))
    if trusted_by != "REQUESTS_CA_BUNDLE":
        bundle = certificate if trusted_by == "profile" else other
        (tmp_path / "config").write_text(f"[profile mine]\nca_bundle = {bundle}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_PROFILE", "mine")
    if trusted_by == "AWS_CA_BUNDLE":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    assert contents(fetch(BucketSource(bucket_uri=uri), "m").folder) == MODEL


@pytest.mark.usefixtures("with_tls")
def test_unknown_certificate_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayllm.sources.buckets.s3._ATTEMPTS", 1)
    with pytest.raises(SourceError, match=r"cannot be reached at .*SSLError"):
        fetch(BucketSource(bucket_uri=uri), "m")


class _OtherRegion(Handler):
    """Redirects requests signed for another region to eu-west-1, as S3 does."""

    def do_HEAD(self) -> None:
        if "/eu-west-1/s3/" in self.headers.get("authorization", ""):
            return self.reply(200, {"ETag": '"1"'})
        return self.reply(400, {"x-amz-bucket-region": "eu-west-1"})


def test_url_is_signed_for_the_buckets_region(s3: S3Server) -> None:
    listener = Listener(_OtherRegion)
    listener.start()
    args = ("--endpoint-url", listener.url, "--region", "us-east-1")
    try:
        location = S3Bucket("b", BucketSource(bucket_uri="s3://b", s3_sync_args=args)).locate("m/w", '"1"')
    finally:
        listener.stop()
    # A presigned URL is valid for the region that it is signed for.
    assert "/eu-west-1/s3/" in unquote(location.url)


class _InBahrain(S3Bucket):
    """A bucket in me-south-1 of AWS itself, of which only this region's own host knows."""

    def _connect(self) -> None:
        super()._connect()
        self._client.meta.events.register("before-send.s3", _answer_for_bahrain)


def _answer_for_bahrain(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
    is_there = urlsplit(request.url).netloc == "weights.s3.me-south-1.amazonaws.com"
    headers = {"ETag": '"1"'} if is_there else {"x-amz-bucket-region": "me-south-1"}
    return AWSResponse(request.url, 200 if is_there else 400, headers, HTTPResponse(BytesIO(), preload_content=False))


@pytest.mark.parametrize("options", [{}, {"anonymous": True}], ids=str)
@pytest.mark.parametrize("region", ["me-south-1", "us-west-2", "us-east-1"])
def test_url_names_the_host_of_the_buckets_region(
    s3: S3Server, region: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    location = _InBahrain("weights", BucketSource(bucket_uri="s3://weights", **options)).locate("m/w", '"1"')
    # The global host does not serve regions that accounts have to opt in to, nor new buckets of any other.
    assert urlsplit(location.url).netloc == "weights.s3.me-south-1.amazonaws.com"
    assert options or "/me-south-1/s3/" in unquote(location.url)
