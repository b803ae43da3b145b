"""Files older than RayLLM 1, which are refused by name."""

from __future__ import annotations

import re
from typing import Any

from rayllm.config.legacy.nested import Mapping
from rayllm.core.errors import ConfigError

_MODEL = (
    "this is a model's file of RayLLM 0, Aviary or Private Endpoints, which RayLLM no longer reads; write "
    "`model_loading_config`, `generation_config` and `engine_kwargs` instead (docs/configuration.md)."
)
_KEYS = {
    "engine_config": _MODEL,
    "scaling_config": _MODEL,
    "multiplex_config": _MODEL,
    "model_config": _MODEL,
    "base_model_id": "this is an adapter's file of Private Endpoints, which RayLLM no longer reads; list the adapter "
    "in `lora_config.lora_modules` of its base model instead (docs/adapters.md).",
    "apiVersion": "this is a manifest of Kubernetes; `rayllm convert` reads a RayService (docs/converting.md).",
}
_APPLICATION = re.compile(r"(rayllm|aviary|aviary_private_endpoints)\.(backend|frontend)[\w.]*:\w+")


def refuse_removed_model(raw: Mapping, name: str) -> None:
    """Refuse a model's file of a removed format.

    Raises:
        ConfigError: it is one.
    """
    for key, why in _KEYS.items():
        if key in raw:
            raise ConfigError(f"{name}: {key}: {why}")


def refuse_removed_application(import_path: Any, name: str) -> None:
    """Refuse an application whose import path is that of a removed format.

    Raises:
        ConfigError: it is one.
    """
    if _APPLICATION.fullmatch(str(import_path)):
        raise ConfigError(
            f"{name}.import_path: `{import_path}` is RayLLM 0's, Aviary's or Private Endpoints', whose files RayLLM no "
            "longer reads; use `rayllm:app`, with all models in `args.llm_configs` (docs/configuration.md)."
        )
