"""Data for the worker: environment variables, and the envelope of a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.core.errors import ConfigError
from rayllm.core.settings import Settings
from rayllm.engine.guided.worker_messages import Envelope, WorkerEnvironment


def test_a_worker_reads_what_the_replica_set(tmp_path: Path) -> None:
    environment = WorkerEnvironment(tmp_path, Path("/cache"), "10.0.0.1:7")
    variables = environment.variables({"VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "NIM_,X_"})
    assert WorkerEnvironment.read(variables) == environment
    assert variables["VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"] == "NIM_,X_,_RAYLLM_GUIDED_"
    assert environment.variables(variables) == variables
    # They are no settings, so they are not refused as unknown ones.
    Settings.from_environment(variables)


def test_a_worker_that_was_told_nothing_says_so() -> None:
    with pytest.raises(ConfigError, match="_RAYLLM_GUIDED_FOLDER"):
        WorkerEnvironment.read({})


def test_an_envelope_survives_the_way() -> None:
    envelope = Envelope("a", "chat", {"messages": [{"role": "user", "content": "ä\n"}]}, "id")
    assert Envelope.unpack(envelope.pack()) == envelope
