"""A logits processor that has a model say what a script says, so that all but its choice of words is real.

The script is a JSON file, `SCRIPT` in the environment of the replica. A person's prompt holds `[turn:NAME]`, and the
steps of the turn follow one after the other: a step is a text, or a list of calls of tools, after whose results the
next comes. In a step, `⟨PATTERN⟩` stands for what the pattern's group last matched in the prompt. Where the last
message of a person names no turn, as where an agent asks for a summary, a rule of `otherwise` answers: the first whose
pattern that message matches.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
TURN = re.compile(r"\[turn:([\w-]+)\]")
END = "<|im_end|>"
FOUND = re.compile("⟨(.+?)⟩")


def answer(script: dict[str, Any], prompt: str) -> str:
    """What the script says after a prompt.

    Raises:
        LookupError: the script has nothing for it.
    """
    turn, results, is_answered, last = None, 0, False, ""
    for role, text in MESSAGE.findall(prompt):
        if role == "user":
            last = text
            if named := TURN.findall(text):
                turn, results = named[-1], 0
        elif role == "assistant":
            is_answered = False
        elif role == "tool" and not is_answered:
            # Results of calls that were made together are one step.
            results, is_answered = results + 1, True
    for rule in script["otherwise"]:
        if not TURN.search(last) and re.search(rule["pattern"], last):
            return _written(rule["step"], prompt)
    if (steps := script["turns"].get(turn)) is None:
        raise LookupError(f"The script has no turn {turn}.")
    return _written(steps[min(results, len(steps) - 1)], prompt)


def _written(step: str | list[dict[str, Any]], prompt: str) -> str:
    if isinstance(step, str):
        return FOUND.sub(lambda mark: (re.findall(mark[1], prompt) or ["nothing"])[-1], step)
    calls = (_written(json.dumps(call, ensure_ascii=False), prompt) for call in step)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


class Actor(LogitsProcessor):
    """Leaves each request one token to choose: the next one of its answer."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        self._script = json.loads(Path(os.environ["SCRIPT"]).read_text())
        # By place in the batch: the tokens of the answer, and those that were said.
        self._said: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        """False, since it decides what is said."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests of the batch from place to place."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._said.pop(index, None)
        for index, _params, prompt, said in batch_update.added:
            self._said[index] = (self._answer(prompt or []), said)
        for first, second, direction in batch_update.moved:
            one, other = self._said.pop(first, None), self._said.pop(second, None)
            if one is not None:
                self._said[second] = one
            if other is not None and direction == MoveDirectionality.SWAP:
                self._said[first] = other

    def _answer(self, prompt: list[int]) -> list[int]:
        try:
            text = answer(self._script, self._tokenizer.decode(prompt))
        except LookupError as error:
            text = str(error)
        return self._tokenizer.encode(text + END, add_special_tokens=False)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Allow only the next token of each answer."""
        for index, (tokens, said) in self._said.items():
            if index < len(logits):
                logits[index] = float("-inf")
                logits[index, tokens[min(len(said), len(tokens) - 1)]] = 0.0
        return logits

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Take all parameters."""
