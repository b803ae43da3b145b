"""Custom guided decoding: `backend.py` files of users that constrain generation, chosen request by request."""

from rayllm.engine.guided.service import PROCESSOR, GuidedService, chosen_folder
from rayllm.engine.guided.serving_hooks import ERROR_TYPE

__all__ = ["ERROR_TYPE", "PROCESSOR", "GuidedService", "chosen_folder"]
