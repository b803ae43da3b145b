"""A policy hook: takes out of a request what a coding agent adds to a question, for which the demo is too small.

Each such request is kept as it was sent, one a line of requests.jsonl beside this file. One with the header `x-as-sent`
goes on unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rayllm.hooks import HookRequest

QUESTION = "What is the capital of France?"
KEPT = Path(__file__).with_name("requests.jsonl")
# Characters of JSON, fewer than a coding agent's and more than a library's.
LONG = 2000
_INSTRUCTIONS = {"system", "instructions", "tools", "tool_choice", "parallel_tool_calls"}


def shorten(request: HookRequest) -> dict[str, Any] | None:
    """Leave only the question of a long request; its other fields stay."""
    body = request.body
    if body is None or "x-as-sent" in request.headers or len(json.dumps(body)) < LONG:
        return None
    with KEPT.open("a") as file:
        file.write(json.dumps({"path": request.path, "body": body}) + "\n")
    field = "input" if "input" in body else "messages"
    rest = {name: value for name, value in body.items() if name not in _INSTRUCTIONS}
    return rest | {field: [{"role": "user", "content": QUESTION}]}
