"""Users' parsers that were written for an older vLLM, in a process of their own that has no guided decoding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parent / "tool_plugin.py"
LOAD = """
import sys
from rayllm.engine.arguments import VllmArguments
from rayllm.engine.vllm.application import make_server_arguments

key, path, name = sys.argv[1:]
if key == "tool_parser_plugin":
    arguments = VllmArguments({"model": "m"}, {key: path, "tool_call_parser": name})
else:
    arguments = VllmArguments({"model": "m", key: path, "reasoning_parser": name}, {})
make_server_arguments(arguments)
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


@pytest.mark.parametrize("kind", ["tool", "reasoning"])
def test_old_import_paths_resolve_without_guided_decoding(tmp_path: Path, kind: str) -> None:
    plugin = PLUGIN
    if kind == "reasoning":
        plugin = tmp_path / "reasoning.py"
        plugin.write_text(REASONING)
    command = [sys.executable, "-c", LOAD, f"{kind}_parser_plugin", str(plugin)]
    done = subprocess.run([*command, "example" if kind == "tool" else "mine"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.rstrip().endswith("loaded")
