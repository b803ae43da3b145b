"""Convert files of RayLLM 1 and of `ray.serve.llm` to the current schema, and report every changed key."""

from rayllm.deploy.conversion.convert import FolderNeededError, Report, convert_files

__all__ = ["FolderNeededError", "Report", "convert_files"]
