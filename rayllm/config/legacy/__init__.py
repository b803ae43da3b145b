"""RayLLM 1's spellings of model files, rewritten to the current schema; older formats are refused. Process: any."""

from rayllm.config.legacy.changes import Change, Changes, Mapping, at, copied, mapped, tables
from rayllm.config.legacy.upgrade import refuse_removed_application, refuse_removed_model, upgrade

__all__ = ["Change", "Changes", "Mapping", "at", "copied", "mapped", "refuse_removed_application"]
__all__ += ["refuse_removed_model", "tables", "upgrade"]
