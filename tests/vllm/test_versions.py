"""What the engine says of a vLLM, or of a model, that does not go with the other."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from rayllm.config.vllm_versions import SERIES, current_series, names_of
from rayllm.core.errors import ConfigError
from rayllm.engine.vllm import engine

LOAD = """
import json, sys
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.engine import make_engine_config
from rayllm.core.errors import ConfigError
try:
    make_engine_config(VllmArguments(engine={"model": sys.argv[1], "skip_tokenizer_init": True}, server={}))
except ConfigError as error:
    print(json.dumps(error.message))
"""


def test_an_older_vllm_is_refused_and_a_newer_one_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "installed_version", lambda: Version("0.25.1"))
    with pytest.raises(ConfigError, match=r"vLLM 0\.25\.1 is installed, but RayLLM needs 0\.26 or newer; install"):
        engine.check_version()
    caplog.set_level(logging.WARNING)
    for version in (f"{SERIES[0]}.0", f"{SERIES[-1]}.3", None):
        monkeypatch.setattr(engine, "installed_version", lambda version=version: version and Version(version))
        engine.check_version()
    assert not caplog.records
    monkeypatch.setattr(engine, "installed_version", lambda: Version("0.99.0"))
    engine.check_version()
    assert "vLLM 0.99.0 is newer than" in caplog.text


@pytest.mark.skipif(current_series() == SERIES[-1], reason="no later series is known")
def test_an_architecture_of_a_later_vllm_is_refused_with_it(tmp_path: Path) -> None:
    later = set(names_of(SERIES[-1])["architectures"]) - set(names_of(current_series())["architectures"])
    name = sorted(later)[0]
    shape = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": [name], **shape}))
    variables = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, env=variables, check=False
    )
    message = json.loads(done.stdout.splitlines()[-1])
    assert f" The architecture `{name}` needs vLLM" in message
