"""Older files and those of `ray.serve.llm`, converted to today's, with all that changed said key by key."""

from rayllm.conversion.files import Conversion, FolderNeededError, Report, convert_files
from rayllm.conversion.findings import Note
from rayllm.conversion.form import Form
from rayllm.conversion.target import Target

__all__ = ["Conversion", "FolderNeededError", "Form", "Note", "Report", "Target", "convert_files"]
