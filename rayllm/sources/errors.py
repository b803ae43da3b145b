"""Reasons why a source cannot be fetched."""

from rayllm.core.errors import SourceError


class UnreachableError(SourceError):
    """The server is down or cannot be reached: a retry may succeed, or a cached copy may be used."""


class MissingError(SourceError):
    """The source does not exist."""


class ChangedError(SourceError):
    """A file was replaced or deleted after the listing."""


class DeniedError(SourceError):
    """The server refused the URL or the credentials."""
