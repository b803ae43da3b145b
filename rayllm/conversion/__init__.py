"""Older files and those of `ray.serve.llm`, converted to today's, with all that changed said key by key."""

from rayllm.config.legacy.changes import Note
from rayllm.conversion.convert import Conversion, FolderNeededError, Report, convert_files
from rayllm.conversion.formats import Form
from rayllm.conversion.target import Target

__all__ = ["Conversion", "FolderNeededError", "Form", "Note", "Report", "Target", "convert_files"]
