"""Custom guided decoding, enabled by the model's file or by NIM's variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.config.model import GuidedDecoding
from rayllm.core.errors import ConfigError
from rayllm.engine.guided import chosen_folder

NIM = {"NIM_TRUST_CUSTOM_CODE": "1", "NIM_CUSTOM_GUIDED_DECODING_BACKENDS": "/b", "NIM_GUIDED_DECODING_BACKEND": "mine"}


@pytest.mark.parametrize(
    ("config", "environment", "chosen"),
    [
        (None, {}, None),
        (GuidedDecoding(), {}, None),
        (None, NIM, (Path("/b"), "mine")),
        (None, NIM | {"NIM_GUIDED_DECODING_BACKEND": "/mine/"}, (Path("/b"), "mine")),
        (None, NIM | {"NIM_TRUST_CUSTOM_CODE": "0"}, None),
        (GuidedDecoding(backends_dir="/a", trust_custom_code=True), {}, (Path("/a"), None)),
        (GuidedDecoding(backends_dir="/a", trust_custom_code=True, default_backend="x"), NIM, (Path("/a"), "x")),
        (GuidedDecoding(backends_dir="/a"), {"NIM_TRUST_CUSTOM_CODE": "1"}, (Path("/a"), None)),
    ],
)
def test_what_is_loaded(
    config: GuidedDecoding | None, environment: dict[str, str], chosen: tuple[Path, str | None] | None
) -> None:
    assert chosen_folder(config, environment) == chosen


def test_code_is_run_only_where_trusted() -> None:
    with pytest.raises(ConfigError, match="trust_custom_code: true"):
        chosen_folder(GuidedDecoding(backends_dir="/a"), {})
    with pytest.raises(ConfigError, match="trust_custom_code: true"):
        chosen_folder(GuidedDecoding(default_backend="x"), NIM | {"NIM_TRUST_CUSTOM_CODE": "0"})


@pytest.mark.parametrize("config", [GuidedDecoding(default_backend="x"), GuidedDecoding(trust_custom_code=True)])
@pytest.mark.parametrize("environment", [{}, {"NIM_TRUST_CUSTOM_CODE": "1"}])
def test_what_asks_for_backends_that_are_nowhere_is_refused(
    config: GuidedDecoding, environment: dict[str, str]
) -> None:
    [key] = config.model_fields_set
    with pytest.raises(ConfigError, match=rf"guided_decoding\.{key}: there are no backends.*backends_dir"):
        chosen_folder(config, environment)
