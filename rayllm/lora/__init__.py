"""LoRA adapters: their names, where they lie, and what is looked at before an engine sees them."""

from rayllm.lora.base import BaseModules
from rayllm.lora.check import AdapterLimits
from rayllm.lora.names import AdapterName, adapter_of, no_adapter, parse_name
from rayllm.lora.place import Place, open_place
from rayllm.lora.store import AdapterFiles, AdapterStore

__all__ = [
    "AdapterFiles",
    "AdapterLimits",
    "AdapterName",
    "AdapterStore",
    "BaseModules",
    "Place",
    "adapter_of",
    "no_adapter",
    "open_place",
    "parse_name",
]
