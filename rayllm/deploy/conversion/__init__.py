"""Converts files of RayLLM 1 and `ray.serve.llm`, and reports every changed key. Process: command line."""

from rayllm.deploy.conversion.convert import FolderNeededError, Report, convert_files

__all__ = ["FolderNeededError", "Report", "convert_files"]
