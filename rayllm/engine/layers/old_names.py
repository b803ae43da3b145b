"""Request fields that vLLM has renamed since: old clients go on working.

vLLM ignores fields that it does not know, so an old name would be answered without its constraint. docs/api.md lists
them all.
"""

from __future__ import annotations

import json
from typing import Any

from rayllm.errors import RequestError

Body = dict[str, Any]

# old field → key of `structured_outputs`
CONSTRAINTS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
_WHITESPACE = "guided_whitespace_pattern"
_BACKEND = "guided_decoding_backend"
# Names that vLLM took in a request; the server's backend serves them all today.
_BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")


def translate(body: Body) -> Body:
    """`body` with today's names; the caller's mapping is left as it is.

    Raises:
        RequestError: old names contradict each other or today's, or ask for what is gone.
    """
    old = _old(body)
    _check_best_of(body)
    if not old:
        return _with_whitespace(body)
    _check_backend(old.pop(_BACKEND, None))
    body = {name: value for name, value in body.items() if name not in (*CONSTRAINTS, _WHITESPACE, _BACKEND)}
    today = {CONSTRAINTS.get(name, "whitespace_pattern"): value for name, value in old.items()}
    if today:
        if body.get("structured_outputs") is not None:
            raise RequestError(f"`{next(iter(old))}` and `structured_outputs` exclude each other.", next(iter(old)))
        given = [name for name in old if name in CONSTRAINTS]
        if len(given) > 1:
            raise RequestError(f"`{given[0]}` and `{given[1]}` exclude each other; give one constraint.", given[1])
        body["structured_outputs"] = today
    return _with_whitespace(body)


def _old(body: Body) -> Body:
    """The old names in a request; NIM's clients wrote the constraints into `nvext`."""
    nvext = body.get("nvext")
    found = (
        {name: nvext[name] for name in CONSTRAINTS if nvext.get(name) is not None} if isinstance(nvext, dict) else {}
    )
    return found | {name: body[name] for name in (*CONSTRAINTS, _WHITESPACE, _BACKEND) if body.get(name) is not None}


def _check_best_of(body: Body) -> None:
    best_of, n = body.get("best_of"), body.get("n") or 1
    if isinstance(best_of, int) and isinstance(n, int) and best_of > n:
        raise RequestError("`best_of` beyond `n` is no longer supported by vLLM; ask for `n` choices.", "best_of")


def _check_backend(name: Any) -> None:
    """vLLM once chose a library per request; it now has one a server, and every constraint holds with any of them."""
    # Options stood behind a colon: `xgrammar:no-fallback`.
    if name is not None and (not isinstance(name, str) or name.split(":")[0] not in _BACKENDS):
        raise RequestError(f"`{_BACKEND}` must be one of {', '.join(_BACKENDS)}.", _BACKEND)


def _with_whitespace(body: Body) -> Body:
    """A JSON schema with a whitespace pattern becomes a regular expression: vLLM's backends ignore the pattern."""
    asked = body.get("structured_outputs")
    if not isinstance(asked, dict) or asked.get("whitespace_pattern") is None:
        return body
    pattern = asked["whitespace_pattern"]
    if not isinstance(pattern, str):
        raise RequestError("`structured_outputs.whitespace_pattern` must be a text.", "structured_outputs")
    rest = {name: value for name, value in asked.items() if name != "whitespace_pattern"}
    schema = rest.pop("json", None)
    if schema is None:
        raise RequestError("A whitespace pattern goes with a JSON schema; give one.", "structured_outputs")
    return {**body, "structured_outputs": {**rest, "regex": _as_regex(schema, pattern)}}


def _as_regex(schema: Any, whitespace_pattern: str) -> str:
    from outlines_core.json_schema import build_regex_from_schema

    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        regex: str = build_regex_from_schema(text, whitespace_pattern)
    except (ValueError, TypeError) as error:
        message = f"The JSON schema cannot be used with a whitespace pattern: {error}"
        raise RequestError(message, "structured_outputs") from None
    return regex
