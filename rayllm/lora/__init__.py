"""LoRA adapters: their names, the catalogs that list them, and their validation before an engine loads them."""

from rayllm.lora.base_modules import BaseModules
from rayllm.lora.catalog import Catalog, open_catalog
from rayllm.lora.names import AdapterName, adapter_not_found, parse_name, resolve_adapter
from rayllm.lora.store import AdapterFiles, AdapterStore
from rayllm.lora.validation import AdapterLimits

__all__ = [
    "AdapterFiles",
    "AdapterLimits",
    "AdapterName",
    "AdapterStore",
    "BaseModules",
    "Catalog",
    "adapter_not_found",
    "open_catalog",
    "parse_name",
    "resolve_adapter",
]
