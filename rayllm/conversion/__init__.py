"""Older files and those of `ray.serve.llm`, converted to today's, with all that changed said key by key."""

from rayllm.config.legacy import Change
from rayllm.conversion.convert import Conversion, FolderNeededError, Report, convert_files
from rayllm.conversion.formats import Format
from rayllm.conversion.target import Target

__all__ = ["Change", "Conversion", "FolderNeededError", "Format", "Report", "Target", "convert_files"]
