"""Errors of buckets. Callers translate them into a SourceError or a StorageError."""

from __future__ import annotations

from rayllm.core.errors import RayLLMError


class BucketError(RayLLMError):
    """A bucket or an object cannot be accessed. The message names it and says how to fix it."""


class BucketUnreachableError(BucketError):
    """The provider is down or cannot be reached; a retry may succeed."""


class ObjectChangedError(BucketError):
    """An object was replaced or deleted after it was listed."""
