"""LoRA adapters: their names, and where they lie."""

from rayllm.lora.folder import AdapterFolder
from rayllm.lora.names import AdapterName, parse_name

__all__ = ["AdapterFolder", "AdapterName", "parse_name"]
