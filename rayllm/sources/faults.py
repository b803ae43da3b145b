"""What may go wrong on the way."""

from __future__ import annotations

from rayllm.errors import SourceError


class UnreachableError(SourceError):
    """The place does not answer, or answers that it is in trouble: trying again may help, and so may a copy."""


class MissingError(SourceError):
    """There is no such place."""


class ChangedError(SourceError):
    """An object is no more what was listed."""


class DeniedError(SourceError):
    """The place refuses the address or the credentials."""
