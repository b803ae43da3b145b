from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import ModelConfig
from rayllm.engine import cpu as engine_cpu
from rayllm.engine.cpu import with_cpu_dtype
from rayllm.sizing.cpu import Cpu

AVX2 = Cpu("old", frozenset({"avx2"}))
ZEN = Cpu("new", frozenset({"avx512_bf16"}))
CONFIG = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}


def dtype_on(
    cpu: Cpu | None, folder: Path, monkeypatch: pytest.MonkeyPatch, config: Any = CONFIG, **engine: Any
) -> str | None:
    monkeypatch.setattr(engine_cpu, "this_cpu", lambda: cpu)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    model = ModelConfig.model_validate(
        {"model_loading_config": {"model_id": "m", "model_source": str(folder)}, "engine_kwargs": engine}
    )
    changed = with_cpu_dtype(model, folder)
    assert model.engine_kwargs == engine
    assert {**changed.engine_kwargs, **engine} | {"dtype": 0} == {**engine, "dtype": 0}
    return changed.engine_kwargs.get("dtype")


@pytest.mark.parametrize("engine", [{}, {"dtype": "auto"}, {"max_num_seqs": 3}])
def test_the_cpu_decides_where_the_file_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: dict[str, Any]
) -> None:
    caplog.set_level("INFO")
    engine.pop("dtype", None)
    assert dtype_on(AVX2, tmp_path, monkeypatch, **engine) == "float32"
    assert "computes in float32: the CPU has no instructions for bfloat16" in caplog.text
    assert dtype_on(ZEN, tmp_path, monkeypatch, **engine) == "bfloat16"
    assert "computes in bfloat16: the CPU multiplies bfloat16 (avx512_bf16)" in caplog.text


def test_a_type_in_the_file_is_obeyed_with_a_warning_if_it_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert dtype_on(ZEN, tmp_path, monkeypatch, dtype="bfloat16") == "bfloat16"
    assert dtype_on(AVX2, tmp_path, monkeypatch, dtype="float32") == "float32"
    assert not caplog.records
    assert dtype_on(AVX2, tmp_path, monkeypatch, dtype="bfloat16") == "bfloat16"
    assert "float32 would be faster" in caplog.text
    assert dtype_on(ZEN, tmp_path, monkeypatch, dtype="half") == "half"
    assert "bfloat16 would be faster" in caplog.text


def test_without_a_known_cpu_or_with_quantized_weights_vllm_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dtype_on(None, tmp_path, monkeypatch) is None
    assert dtype_on(ZEN, tmp_path, monkeypatch, {**CONFIG, "quantization_config": {"bits": 4}}) is None


@pytest.mark.parametrize("config", ["", "[]", "{", "null"])
def test_a_broken_config_is_left_for_vllm_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    assert dtype_on(ZEN, tmp_path, monkeypatch, config) in ("bfloat16", "float32")
