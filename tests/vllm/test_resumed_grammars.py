"""Grammars of vLLM's own manager that go on from tokens which another engine has generated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer
from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from rayllm.engine.process.parent_watch import PARENT
from rayllm.engine.vllm.plugin import prepare_process
from rayllm.engine.vllm.resumed_grammars import GENERATED, are_resumed

TOKENIZER = AutoTokenizer.from_pretrained(Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights")
TEXT = "Paris and Berlin, " * 3
TOKENS: list[int] = TOKENIZER.encode(TEXT, add_special_tokens=False)
HALF = len(TOKENS) // 2


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the patch after each test."""
    original = StructuredOutputManager._create_grammar
    monkeypatch.setattr(StructuredOutputManager, "_create_grammar", getattr(original, "__wrapped__", original))
    monkeypatch.delenv(PARENT, raising=False)


@pytest.fixture
def manager() -> StructuredOutputManager:
    options = SimpleNamespace(disable_any_whitespace=False)
    config: Any = SimpleNamespace(structured_outputs_config=options, speculative_config=None, model_config=None)
    made = object.__new__(StructuredOutputManager)
    made.backend = XgrammarBackend(config, tokenizer=TOKENIZER, vocab_size=len(TOKENIZER))
    return made


def request(generated: int) -> Any:
    """A request for TEXT, whose first tokens are in the prompt."""
    return SimpleNamespace(
        request_id="id",
        prompt_token_ids=[7, 8, *TOKENS[:generated]],
        sampling_params=SamplingParams(extra_args={GENERATED: generated} if generated else None),
        structured_output_request=SimpleNamespace(
            structured_output_key=(StructuredOutputOptions.REGEX, "(Paris and Berlin, ){3}")
        ),
    )


def test_a_grammar_goes_on_behind_the_tokens_of_the_prompt(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT, "1")
    prepare_process()
    prepare_process()
    assert are_resumed()
    assert manager._create_grammar(request(HALF)).accept_tokens("id", TOKENS[HALF:])
    assert manager._create_grammar(request(0)).accept_tokens("id", TOKENS)
    assert not manager._create_grammar(request(1)).accept_tokens("id", TOKENS)


def test_engines_that_rayllm_did_not_start_are_left_alone(manager: StructuredOutputManager) -> None:
    prepare_process()
    assert not are_resumed()
    assert manager._create_grammar(request(HALF)).accept_tokens("id", TOKENS)
