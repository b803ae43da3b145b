"""Custom guided decoding: users' `backend.py` files that constrain generation, selected per request.

Process: replica and, for `processor`, engine worker.
"""

from rayllm.engine.guided.service import PROCESSOR, GuidedService, chosen_folder
from rayllm.engine.guided.serving_hooks import ERROR_TYPE

__all__ = ["ERROR_TYPE", "PROCESSOR", "GuidedService", "chosen_folder"]
