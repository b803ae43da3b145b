"""Users' parsers that were written for an older vLLM, in a process of their own that has no guided decoding."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm import import_shims
from rayllm.engine.vllm.application import make_server_arguments

PLUGIN = Path(__file__).parent / "tool_plugin.py"
REASONING = """
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, DeltaMessage
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from vllm.transformers_utils.tokenizer import AnyTokenizer


@ReasoningParserManager.register_module("mine")
class Mine(DeepSeekR1ReasoningParser):
    pass
"""


def load(tool: Path, reasoning: Path) -> None:
    """Load both plugins."""
    assert not any(isinstance(finder, import_shims._Finder) for finder in sys.meta_path)
    make_server_arguments(
        VllmArguments({"model": "m"}, {"tool_parser_plugin": str(tool), "tool_call_parser": "example"})
    )
    plugins = {"reasoning_parser_plugin": str(reasoning), "reasoning_parser": "mine"}
    make_server_arguments(VllmArguments({"model": "m", **plugins}, {}))


def test_old_import_paths_resolve_without_guided_decoding(run_forked: Callable[..., Any], tmp_path: Path) -> None:
    reasoning = tmp_path / "reasoning.py"
    reasoning.write_text(REASONING)
    run_forked(load, PLUGIN, reasoning)
