"""Users' parsers that were written for an older vLLM, in a process of their own that has no guided decoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).parent / "tool_plugin.py"
LOAD = """
import sys
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.application import make_server_arguments

tool, reasoning = sys.argv[1:]
plugins = {"tool_parser_plugin": tool, "tool_call_parser": "example"}
make_server_arguments(VllmArguments({"model": "m"}, plugins))
plugins = {"reasoning_parser_plugin": reasoning, "reasoning_parser": "mine"}
make_server_arguments(VllmArguments({"model": "m", **plugins}, {}))
print("loaded")
"""
REASONING = """
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, DeltaMessage
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from vllm.transformers_utils.tokenizer import AnyTokenizer


@ReasoningParserManager.register_module("mine")
class Mine(DeepSeekR1ReasoningParser):
    pass
"""


def test_old_import_paths_resolve_without_guided_decoding(tmp_path: Path) -> None:
    reasoning = tmp_path / "reasoning.py"
    reasoning.write_text(REASONING)
    command = [sys.executable, "-c", LOAD, str(PLUGIN), str(reasoning)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.rstrip().endswith("loaded")
