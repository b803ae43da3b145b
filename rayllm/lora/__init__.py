"""LoRA adapters: their names, the catalogs that list them, and their validation before an engine loads them.

Process: any.
"""

from rayllm.lora.adapter import Adapter, adapter_not_found, parse_adapter, resolve_adapter
from rayllm.lora.catalog import open_catalog
from rayllm.lora.store import AdapterFiles, AdapterStore

__all__ = [
    "Adapter",
    "AdapterFiles",
    "AdapterStore",
    "adapter_not_found",
    "open_catalog",
    "parse_adapter",
    "resolve_adapter",
]
