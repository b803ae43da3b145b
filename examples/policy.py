"""Policy hooks: shorter answers, no more than four at once, and a line in the log for each request.

`serve_configs/policy.yaml` uses them.
"""

from __future__ import annotations

import logging
from typing import Any

from rayllm.hooks import HookRequest, HookUsage, Refuse

MOST_TOKENS = 512
MOST_ANSWERS = 4

logger = logging.getLogger(__name__)


def check(request: HookRequest) -> dict[str, Any] | None:
    """Refuse many answers, and shorten long ones."""
    body = request.body
    if body is None:
        return None
    if isinstance(answers := body.get("n"), int) and answers > MOST_ANSWERS:
        raise Refuse(f"Ask for {MOST_ANSWERS} answers at most (`n`).", status=400, code="too_many_answers")
    if isinstance(tokens := body.get("max_tokens"), int) and tokens > MOST_TOKENS:
        return {**body, "max_tokens": MOST_TOKENS}
    return None


async def note(usage: HookUsage) -> None:
    """Log what a request has used."""
    logger.info("%s: %s asked %s for %d tokens", usage.id, usage.key, usage.model, usage.completion_tokens)
