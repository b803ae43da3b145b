"""The models of `models/`, planned on the GPUs that their files name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.config import HubSource, load_model
from rayllm.plan.fit import EngineSettings, fit, split_errors
from rayllm.plan.gpus import find_gpu
from rayllm.plan.known_models import known_config, known_models
from rayllm.plan.measure import measure
from rayllm.sources import UnreachableError

ROOT = Path(__file__).parents[3]
SHIPPED = [
    path
    for folder in ("models", "models/older")
    for path in sorted((ROOT / folder).glob("*.yaml"))
    if isinstance(load_model(path).source, HubSource)
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("rayllm.sources.stores.hub._ATTEMPTS", 1)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_is_planned_or_asks_for_the_hub(path: Path) -> None:
    model = load_model(path)
    assert isinstance(model.source, HubSource)
    if known_config(model.source.repo_id) is None:
        with pytest.raises(UnreachableError, match="cannot be reached"):
            measure(model.source)
        return

    measured = measure(model.source)
    setting = EngineSettings(
        tensor_parallel=model.tensor_parallel_size,
        pipeline_parallel=model.pipeline_parallel_size,
        sequences=model.engine_kwargs["max_num_seqs"],
    )
    gpu = find_gpu(model.accelerator_type or "A10G")

    assert split_errors(measured.architecture, setting) == []
    assert model.max_model_len
    assert model.max_model_len <= measured.architecture.context
    assert fit(measured, gpu, setting).sequences_of(model.max_model_len) >= 1


def test_models_known_offline_have_files() -> None:
    assert {load_model(path).model_id for path in SHIPPED} >= set(known_models())
