"""Hooks of the service under test: `user` in a request chooses what happens to it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from rayllm.hooks import HookRequest, HookUsage, Refuse

FOLDER = Path(__file__).parent


async def check(request: HookRequest) -> dict[str, Any] | None:
    """Act on a request."""
    body = request.body or {}
    match body.get("user"):
        case "refuse":
            raise Refuse("Not for you.", code="not_for_you")
        case "change":
            return {**body, "messages": [{"role": "user", "content": "What is the capital of Germany?"}]}
        case "other-model":
            return {**body, "model": "guard"}
        case "wait":
            await asyncio.sleep(2)
        case "loop":
            while True:
                pass
        case "crash":
            os.abort()
        case "show":
            (FOLDER / "shown.json").write_text(json.dumps(vars(request)))
    return None


def note(usage: HookUsage) -> None:
    """Append the usage to a file."""
    with (FOLDER / "usage.jsonl").open("a") as file:
        file.write(json.dumps(vars(usage)) + "\n")
