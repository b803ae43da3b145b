"""Extra files beside a model."""

from __future__ import annotations

from rayllm.config import BucketSource, ExtraFile
from rayllm.sources import fetch
from tests.servers.s3 import S3Server
from tests.unit.sources.downloads import MODEL, contents


def test_extra_file_of_any_type_is_fetched(s3: S3Server, place: str) -> None:
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    s3.put(place, {"x/words.dat": b"w"})
    extra = ExtraFile(bucket_uri=f"s3://{place}/x/words.dat", destination_path="words.dat")
    fetched = fetch(BucketSource(bucket_uri=f"s3://{place}/m", extra_files=(extra,)), "m")
    assert contents(fetched.folder) == {**MODEL, "words.dat": b"w"}


def test_extra_file_paths_are_normalized(s3: S3Server, place: str) -> None:
    s3.put(place, {f"m/{name}": content for name, content in MODEL.items()})
    s3.put(place, {"x/config.json": b"[]", "y/w2.safetensors": b"2"})
    extras = (
        ExtraFile(bucket_uri=f"s3://{place}/x/config.json", destination_path="./config.json"),
        ExtraFile(bucket_uri=f"s3://{place}/y", destination_path="."),
    )
    fetched = fetch(BucketSource(bucket_uri=f"s3://{place}/m", extra_files=extras), "m")
    assert contents(fetched.folder) == {**MODEL, "config.json": b"[]", "w2.safetensors": b"2"}
