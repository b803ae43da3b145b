"""Object-store buckets: credentials, listing and file systems, one module per provider.

A new provider is a new module with a subclass of `Bucket`, an entry in `_PROVIDERS`, and its URI scheme in
`rayllm/config/source.py`.
"""

from rayllm.config import BucketSource
from rayllm.sources.buckets.bucket import Bucket
from rayllm.sources.buckets.gcs import GcsBucket
from rayllm.sources.buckets.s3 import S3Bucket

# URI scheme → provider.
_PROVIDERS: dict[str, type[Bucket]] = {"s3": S3Bucket, "gs": GcsBucket}


def open_bucket(source: BucketSource) -> Bucket:
    """Open the bucket of `source.bucket_uri`; raises SourceError if credentials or options are unusable."""
    scheme, _, path = source.bucket_uri.partition("://")
    return _PROVIDERS[scheme](path.partition("/")[0], source)
