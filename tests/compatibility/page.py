"""docs/compatibility.md, written from what a run has found."""

from __future__ import annotations

from pathlib import Path

from tests.compatibility.cases import Case

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
_HEAD = """\
# Compatibility

Each request below was sent to RayLLM and to vLLM's own server with the same weights, chat template and engine
arguments, and both gave the same answer: the same text, log-probabilities, tool calls, usage and finish reasons, or
the same status where the request is wrong. Deviations are marked. Generated from a run of the tests:
`python -m pytest tests/integration/test_compatibility.py --write-docs`.
"""


def page(statuses: dict[tuple[Case, bool], int]) -> str:
    """The page for the statuses that were seen, by case and whether it was streamed."""
    parts = [_HEAD]
    cases = list(dict.fromkeys(case for case, _ in statuses))
    for group in dict.fromkeys(case.group for case in cases):
        parts += [f"## {group}\n", "| request | endpoint | plain | streamed |", "|---|---|---|---|"]
        parts += [_row(case, statuses) for case in cases if case.group == group]
        parts.append("")
    return "\n".join(parts)


def _row(case: Case, statuses: dict[tuple[Case, bool], int]) -> str:
    seen = [_seen(case, statuses.get((case, stream))) for stream in (False, True)]
    return f"| {case.name} | `{case.path}` | {' | '.join(seen)} |"


def _seen(case: Case, status: int | None) -> str:
    if status is None:
        return ""
    if case.deviation:
        return f"{status}, vLLM {case.vllm_status}: {case.deviation}"
    return f"{status}, {case.other_text}" if case.other_text else f"same ({status})"
