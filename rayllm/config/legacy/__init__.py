"""Older spellings of model files, rewritten to the current schema."""

from rayllm.config.legacy.upgrade import Rewriting, as_written, upgrade

__all__ = ["Rewriting", "as_written", "upgrade"]
