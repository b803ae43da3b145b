"""From a configuration to a processor. Nothing here starts a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from rayllm.batch import (
    HTTPRequestProcessorConfig,
    Processor,
    ProcessorBuilder,
    ProcessorConfig,
    RequestProcessorConfig,
    Stage,
    VLLMProcessorConfig,
    build_llm_processor,
)
from rayllm.core.errors import ConfigError

DEMO = Path(__file__).parents[4] / "models/rayllm-demo.yaml"


class OwnConfig(ProcessorConfig):
    """A kind of processor of the user's own."""

    times: int = 2


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it, and no cluster was started."""
    monkeypatch.setattr(ProcessorBuilder, "_registry", dict(ProcessorBuilder._registry))
    yield
    assert not ray.is_initialized()


def own(config: OwnConfig, **kwargs: Any) -> Processor[OwnConfig]:
    processor = Processor(config, **kwargs)
    for number in range(config.times):
        processor.append_stage(f"Stage{number}", Stage(fn=dict))
    return processor


def url() -> HTTPRequestProcessorConfig:
    return HTTPRequestProcessorConfig(url="http://127.0.0.1")


def test_a_builder_is_registered_by_a_call_or_as_a_decorator() -> None:
    assert ProcessorBuilder.register(OwnConfig, own) is own
    assert build_llm_processor(OwnConfig(times=3)).list_stage_names() == ["Stage0", "Stage1", "Stage2"]

    class Other(ProcessorConfig):
        pass

    @ProcessorBuilder.register(Other)
    def other(config: Other, **kwargs: Any) -> Processor[Other]:
        return Processor(config, **kwargs)

    assert build_llm_processor(Other()).list_stage_names() == []
    assert callable(other)


def test_the_same_builder_may_be_registered_again_and_no_other() -> None:
    ProcessorBuilder.register(OwnConfig, own)
    ProcessorBuilder.register(OwnConfig, own)
    with pytest.raises(ConfigError, match="OwnConfig: a builder is registered already"):
        ProcessorBuilder.register(OwnConfig, lambda config, **kwargs: own(config, **kwargs))


def test_a_configuration_without_a_builder() -> None:
    with pytest.raises(ConfigError, match=r"OwnConfig: no builder is registered; registered: .*VLLMProcessorConfig"):
        build_llm_processor(OwnConfig())


def test_a_subclass_is_built_as_its_base_until_it_has_a_builder() -> None:
    class Mine(HTTPRequestProcessorConfig):
        pass

    config = Mine(url="http://127.0.0.1")
    built = build_llm_processor(config, concurrency=2)
    assert built.list_stage_names() == ["HTTPRequestStage"]
    assert (type(built.config), built.config.concurrency) == (Mine, 2)
    ProcessorBuilder.register(Mine, lambda config, **kwargs: Processor(config, **kwargs))
    assert build_llm_processor(config).list_stage_names() == []


@pytest.mark.parametrize("name", ["preprocess", "postprocess"])
def test_both_spellings_of_the_users_functions(name: str) -> None:
    for spelling in (name, f"{name}_fn"):
        processor = build_llm_processor(url(), **{spelling: dict})  # type: ignore[arg-type]
        assert getattr(processor, f"_{name}") is dict
    with pytest.raises(ConfigError, match=f"`{name}` and `{name}_fn` are aliases; give only one"):
        build_llm_processor(url(), **{name: dict, f"{name}_fn": dict})  # type: ignore[arg-type]


def test_each_stage_can_be_overridden_in_order() -> None:
    seen: list[str] = []

    def override(name: str, stage: Stage) -> None:
        seen.append(name)
        if name.startswith("TokenizeStage"):
            stage.map_kwargs.update(concurrency=2)

    processor = build_llm_processor(VLLMProcessorConfig(model=DEMO), override_stage_config_fn=override)
    assert seen == ["ChatTemplateStage", "TokenizeStage", "VLLMEngineStage", "DetokenizeStage"]
    assert processor.get_stage_by_name("TokenizeStage").map_kwargs["concurrency"] == 2
    assert "concurrency" not in processor.get_stage_by_name("DetokenizeStage").map_kwargs


@pytest.mark.parametrize(
    ("keys", "stages"),
    [
        ({"is_chat": False}, ["TokenizeStage", "VLLMEngineStage", "DetokenizeStage"]),
        ({"need_tokenize": False, "need_detokenize": False}, ["ChatTemplateStage", "VLLMEngineStage"]),
        (
            {"has_images": True},
            ["ChatTemplateStage", "PrepareImageStage", "TokenizeStage", "VLLMEngineStage", "DetokenizeStage"],
        ),
        ({"task_type": "embed"}, ["ChatTemplateStage", "TokenizeStage", "VLLMEngineStage"]),
        ({"task_type": "classify", "is_chat": False}, ["TokenizeStage", "VLLMEngineStage"]),
        ({"task_type": "score"}, ["VLLMEngineStage"]),
    ],
)
def test_the_stages_of_an_engine(keys: dict[str, Any], stages: list[str]) -> None:
    config = VLLMProcessorConfig(model=DEMO, **keys)
    assert build_llm_processor(config).list_stage_names() == stages


def test_stages_are_appended_and_found_by_name() -> None:
    processor = Processor(OwnConfig())
    first, second = Stage(fn=dict), Stage(fn=list)
    processor.append_stage("first", first)
    processor.append_stage("second", second)
    assert processor.list_stage_names() == ["first", "second"]
    assert processor.get_stage_by_name("second") is second
    with pytest.raises(ConfigError, match="already has a stage `first`"):
        processor.append_stage("first", second)
    with pytest.raises(ValueError, match="has no stage `third`; it has first, second"):
        processor.get_stage_by_name("third")


def test_a_call_completes_the_configuration_which_stays_as_it_is() -> None:
    config = VLLMProcessorConfig(model=DEMO)
    processor = build_llm_processor(config, accelerator_type="L4", concurrency=4)
    assert (processor.config.accelerator_type, processor.config.concurrency) == ("L4", 4)
    assert (config.accelerator_type, config.concurrency) == (None, 1)
    assert processor.get_stage_by_name("VLLMEngineStage").map_kwargs["concurrency"] == 4


def test_a_call_must_not_contradict_the_configuration() -> None:
    config = HTTPRequestProcessorConfig(url="http://127.0.0.1", concurrency=4)
    assert build_llm_processor(config, concurrency=4).config.concurrency == 4
    with pytest.raises(ConfigError, match="concurrency: the configuration says 4, the call 8; keep one"):
        build_llm_processor(config, concurrency=8)
    with pytest.raises(ConfigError, match="concurrency: 0 must be a number of at least 1"):
        build_llm_processor(url(), concurrency=0)


@pytest.mark.parametrize("config", [url(), RequestProcessorConfig(app_name="app")])
def test_an_accelerator_is_refused_without_an_engine(config: ProcessorConfig) -> None:
    with pytest.raises(ConfigError, match="`accelerator_type` is for"):
        build_llm_processor(config, accelerator_type="L4")


def test_a_variable_of_a_header_is_missed_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="`BATCH_KEY` is not set"):
        build_llm_processor(HTTPRequestProcessorConfig(url="http://127.0.0.1", header="A: $BATCH_KEY"))


def test_backends_of_guided_decoding_are_refused(tmp_path: Path) -> None:
    text = f"model_loading_config: {{model_id: m}}\nguided_decoding: {{backends_dir: {tmp_path}}}\n"
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"guided_decoding: .* use RequestProcessorConfig"):
        build_llm_processor(VLLMProcessorConfig(model=tmp_path / "m.yaml"))


def test_texts_to_score_have_no_images() -> None:
    with pytest.raises(ConfigError, match="has_images: does not apply to the task score"):
        build_llm_processor(VLLMProcessorConfig(model=DEMO, task_type="score", has_images=True))
