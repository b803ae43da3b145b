"""Hooks of every kind; requests choose by their model what happens to them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from rayllm.hooks import HookRequest, HookUsage, Refuse

# In this process.
calls = 0


async def check(request: HookRequest) -> Any:
    """Do what the request's model says."""
    global calls
    calls += 1
    return await _act(request)


async def _act(request: HookRequest) -> Any:
    body = request.body or {}
    match request.model:
        case "refuse":
            raise Refuse("Not on Sundays.", 451, "sunday")
        case "change":
            return {**body, "model": "other"}
        case "show":
            return {**body, "model": "other", "seen": {**vars(request), "calls": calls, "pid": os.getpid()}}
        case "raise":
            raise ValueError("boom")
        case "returns-a-list":
            return [1]
        case "returns-nan":
            return {**body, "x": float("nan")}
        case "returns-much":
            return {**body, "x": "y" * 10_000}
        case "returns-nobody":
            return {}
        case "sleep":
            await asyncio.sleep(3600)
        case "loop":
            while True:
                pass
        case "block":
            time.sleep(body["seconds"])
        case "crash":
            os.abort()
        case "exit":
            raise SystemExit(3)
        case "print":
            print("this must not mix with the answers")
        case "wait":
            # Until the test makes the file.
            go = Path(body["file"])
            with go.with_suffix(".begun").open("a") as begun:
                begun.write("x")
            while not go.exists():
                await asyncio.sleep(0.01)
    return None


def check_in_thread(request: HookRequest) -> None:
    """Hang in a thread."""
    if request.model == "hang":
        time.sleep(3600)
    if request.model == "refuse":
        raise Refuse("No.")


class Policy:
    """A hook with a state."""

    async def __call__(self, request: HookRequest) -> None:
        raise Refuse("By an object.")


policy = Policy()


def note(usage: HookUsage) -> None:
    """Append the usage to a file."""
    with open(os.environ["NOTED_USAGE"], "a") as file:
        file.write(json.dumps(vars(usage)) + "\n")
