"""Packages that only some models need are looked for before the weights are fetched."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from rayllm.config import ModelConfig
from rayllm.core.errors import ConfigError
from rayllm.engine.arguments import check_optional_packages


def model(**engine_kwargs: Any) -> ModelConfig:
    return ModelConfig.model_validate({"model_loading_config": {"model_id": "m"}, "engine_kwargs": engine_kwargs})


@pytest.mark.parametrize(
    ("engine_kwargs", "module", "install"),
    [
        ({"load_format": "runai_streamer"}, "runai_model_streamer", "rayllm[streamer]"),
        ({"load_format": "runai_streamer_sharded"}, "runai_model_streamer", "rayllm[streamer]"),
        ({"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}}, "lmcache", "rayllm[kv]"),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector"}}, "nixl", "rayllm[kv]"),
    ],
)
def test_a_missing_package_is_named(engine_kwargs: dict[str, Any], module: str, install: str) -> None:
    assert find_spec(module) is None, "this environment has the package"
    with pytest.raises(ConfigError, match=f"model `m`: engine_kwargs need a package: install `{install[:6]}"):
        check_optional_packages(model(**engine_kwargs))


@pytest.mark.parametrize("engine_kwargs", [{}, {"load_format": "auto"}, {"kv_transfer_config": None}])
def test_other_models_need_none(engine_kwargs: dict[str, Any]) -> None:
    check_optional_packages(model(**engine_kwargs))
