"""Environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.errors import ConfigError
from rayllm.settings import Settings


def test_variables_are_read_by_name_and_type() -> None:
    read = Settings.from_environment({"RAYLLM_CACHE_DIR": "/c", "RAYLLM_CONNECT_TIMEOUT_S": "2.5", "HOME": "/x"})
    assert (read.cache_dir, read.connect_timeout_s) == (Path("/c"), 2.5)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RAYLLM_CACHE": "/c"}, "RAYLLM_CACHE: no such environment variable"),
        ({"RAYLLM_CONNECT_TIMEOUT_S": "soon"}, "RAYLLM_CONNECT_TIMEOUT_S: 'soon' is not a float"),
        ({"RAYLLM_RESOURCE_CHECK": "maybe"}, "must be auto, always or never"),
    ],
)
def test_wrong_variables_are_refused(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings.from_environment(variables)


def test_what_kubernetes_sets_beside_a_service_called_rayllm_is_let_be() -> None:
    Settings.from_environment({"RAYLLM_SERVICE_HOST": "10.0.0.1", "RAYLLM_PORT": "tcp://x", "RAYLLM_PORT_80_TCP": "x"})
