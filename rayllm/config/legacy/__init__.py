"""Older spellings of model files, rewritten to the current schema."""

from rayllm.config.legacy.changes import Change, Changes
from rayllm.config.legacy.upgrade import upgrade

__all__ = ["Change", "Changes", "upgrade"]
