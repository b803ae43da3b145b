"""Which backend compiles the constraints of a model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer, ByT5Tokenizer
from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.structured_output.backend_guidance import GuidanceBackend

from rayllm.engine.vllm.grammar_backend import takes_guidance
from rayllm.engine.vllm.structured_output import choose_backend

DEMO = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer in Python, which needs no vocabulary."""
    folder = tmp_path_factory.mktemp("slow")
    ByT5Tokenizer().save_pretrained(folder)
    return folder


def config_of(tokenizer: Path, backend: str, **fields: Any) -> Any:
    fields["structured_outputs_config"] = StructuredOutputsConfig(backend=backend)  # type: ignore[arg-type]
    return AsyncEngineArgs(model=str(DEMO), tokenizer=str(tokenizer), **fields).create_engine_config()


@pytest.mark.parametrize("fits", [True, False])
def test_guidance_takes_the_tokenizers_that_are_said_to_fit(slow: Path, fits: bool) -> None:
    config, tokenizer = config_of(DEMO, "guidance"), AutoTokenizer.from_pretrained(DEMO if fits else slow)
    assert takes_guidance(tokenizer) == fits
    with nullcontext() if fits else pytest.raises((ValueError, TypeError)):
        GuidanceBackend(config, tokenizer=tokenizer, vocab_size=len(tokenizer))


@pytest.mark.parametrize("is_tekken", [True, False])
def test_of_mistrals_own_tokenizers_guidance_takes_tekken(is_tekken: bool) -> None:
    assert takes_guidance(SimpleNamespace(is_tekken=is_tekken)) == is_tekken


@pytest.mark.parametrize(
    ("backend", "is_slow", "fields", "chosen"),
    [
        ("guidance", False, {}, "guidance"),
        ("guidance", True, {}, "xgrammar"),
        ("xgrammar", False, {}, "xgrammar"),
        ("xgrammar", True, {}, "xgrammar"),
        ("guidance", True, {"skip_tokenizer_init": True}, "guidance"),
    ],
)
def test_a_tokenizer_that_guidance_does_not_read_is_for_xgrammar(
    slow: Path, backend: str, is_slow: bool, fields: dict[str, Any], chosen: str
) -> None:
    config = config_of(slow if is_slow else DEMO, backend, **fields)
    choose_backend(config)
    assert config.structured_outputs_config.backend == chosen
