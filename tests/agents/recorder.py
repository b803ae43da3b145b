"""Hooks that keep what agents send, and how each request ended, one JSON object a line, in `RECORDS`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from rayllm.hooks import HookRequest, HookUsage


def _keep(name: str, record: dict[str, object]) -> None:
    with (Path(os.environ["RECORDS"]) / name).open("a") as file:
        file.write(json.dumps(record, default=str) + "\n")


def keep(request: HookRequest) -> None:
    """Keep a request."""
    _keep("requests.jsonl", {"path": request.path, "headers": dict(request.headers), "body": request.body})


async def note(usage: HookUsage) -> None:
    """Keep how a request ended."""
    _keep("ends.jsonl", asdict(usage))
