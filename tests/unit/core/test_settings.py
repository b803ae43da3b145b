"""Environment variables."""

from __future__ import annotations

import pytest

from rayllm.core.errors import ConfigError
from rayllm.core.settings import Settings


def test_variables_are_read_by_name_and_type() -> None:
    read = Settings.from_environment({"RAYLLM_LOG_LEVEL": "DEBUG", "RAYLLM_CONNECT_TIMEOUT_S": "2.5", "HOME": "/x"})
    assert (read.log_level, read.connect_timeout_s) == ("DEBUG", 2.5)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RAYLLM_LOG": "DEBUG"}, "RAYLLM_LOG: unknown environment variable"),
        ({"RAYLLM_LOG_LEVEL": "loud"}, "RAYLLM_LOG_LEVEL: must be one of DEBUG"),
        ({"RAYLLM_CONNECT_TIMEOUT_S": "soon"}, "RAYLLM_CONNECT_TIMEOUT_S: 'soon' is not a float"),
        ({"RAYLLM_RESOURCE_CHECK": "maybe"}, "must be auto, always or never"),
        ({"RAYLLM_DOWNLOAD_THREADS": "0"}, "RAYLLM_DOWNLOAD_THREADS: must be 1 or more"),
        ({"RAYLLM_FORK_SERVER_IDLE_S": "inf"}, "RAYLLM_FORK_SERVER_IDLE_S: must be 86400 or less"),
        ({"RAYLLM_CACHE_MAX_GB": "-1"}, "RAYLLM_CACHE_MAX_GB: must be 0 or more"),
        ({"RAYLLM_ADAPTER_REFRESH_S": "nan"}, "RAYLLM_ADAPTER_REFRESH_S: must be 0 or more"),
    ],
)
def test_wrong_variables_are_refused(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings.from_environment(variables)


def test_what_kubernetes_sets_beside_a_service_called_rayllm_is_let_be() -> None:
    Settings.from_environment({"RAYLLM_SERVICE_HOST": "10.0.0.1", "RAYLLM_PORT": "tcp://x", "RAYLLM_PORT_80_TCP": "x"})
    Settings.from_environment({"RAYLLM_HEAD_SVC_SERVICE_HOST": "x", "RAYLLM_HEAD_SVC_SERVICE_PORT_CLIENT": "1"})
