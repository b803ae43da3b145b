"""Convert files of RayLLM 1 and of `ray.serve.llm` to the current schema, and report every changed key."""

from rayllm.config.legacy import Change
from rayllm.deploy.conversion.convert import Conversion, FolderNeededError, Report, convert_files
from rayllm.deploy.conversion.formats import Format
from rayllm.deploy.conversion.target import Target

__all__ = ["Change", "Conversion", "FolderNeededError", "Format", "Report", "Target", "convert_files"]
