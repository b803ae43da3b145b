"""Request fields that vLLM has renamed since: old clients go on working.

vLLM ignores fields that it does not know, so an old name would be answered without its constraint. docs/api.md lists
them all.
"""

from __future__ import annotations

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
# Old fields that stand at the top of a request.
OLD_NAMES = frozenset([*CONSTRAINTS, _WHITESPACE, _BACKEND])
# Names that vLLM took in a request; the server's backend serves them all today.
_BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")


def translate(body: Body) -> Body:
    """`body` with today's names; the caller's mapping is left as it is.

    Raises:
        RequestError: old names contradict each other or today's, or ask for what is gone.
    """
    _check_best_of(body)
    if old := _old(body):
        body = _renamed(body, old)
    _check_whitespace(body)
    return body


def _renamed(body: Body, old: Body) -> Body:
    _check_backend(old.pop(_BACKEND, None))
    body = {name: value for name, value in body.items() if name not in OLD_NAMES}
    today = {CONSTRAINTS.get(name, "whitespace_pattern"): value for name, value in old.items()}
    if today:
        if body.get("structured_outputs") is not None:
            raise RequestError(f"`{next(iter(old))}` and `structured_outputs` exclude each other.", next(iter(old)))
        given = [name for name in old if name in CONSTRAINTS]
        if len(given) > 1:
            raise RequestError(f"`{given[0]}` and `{given[1]}` exclude each other; give one constraint.", given[1])
        body["structured_outputs"] = today
    return body


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


def _check_whitespace(body: Body) -> None:
    """A whitespace pattern has a meaning beside a JSON schema only; the two become one later, since that is costly."""
    asked = body.get("structured_outputs")
    if not isinstance(asked, dict) or asked.get("whitespace_pattern") is None:
        return
    if not isinstance(asked["whitespace_pattern"], str):
        raise RequestError("`structured_outputs.whitespace_pattern` must be a text.", "structured_outputs")
    if asked.get("json") is None:
        raise RequestError("A whitespace pattern goes with a JSON schema; give one.", "structured_outputs")
    if asked.get("disable_any_whitespace"):
        name = "structured_outputs.disable_any_whitespace"
        raise RequestError(f"A whitespace pattern and `{name}` exclude each other.", name)
