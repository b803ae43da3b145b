"""LoRA adapters: their names, the catalogs that list them, and their validation before an engine loads them."""

from rayllm.lora.catalog import open_catalog
from rayllm.lora.names import AdapterName, adapter_not_found, parse_name, resolve_adapter
from rayllm.lora.store import AdapterFiles, AdapterStore

__all__ = [
    "AdapterFiles",
    "AdapterName",
    "AdapterStore",
    "adapter_not_found",
    "open_catalog",
    "parse_name",
    "resolve_adapter",
]
