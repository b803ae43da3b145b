"""Requests by the OpenAPI description of the endpoints of models, which schemathesis follows and breaks."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import schemathesis
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from schemathesis.core import NotSet
from schemathesis.generation import GenerationMode

from benchmarks.hostility.corpus import HostileRequest, make_request
from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, ENDPOINTS, RESPONSES
from rayllm.serving.router.application import DESCRIPTION_FILE as FILE

_SHORT = {
    CHAT: {"max_tokens": 3, "max_completion_tokens": 3},
    CHAT_BATCH: {"max_tokens": 3, "max_completion_tokens": 3},
    COMPLETIONS: {"max_tokens": 3},
    RESPONSES: {"max_output_tokens": 3},
}


def description() -> dict[str, Any]:
    """The router's OpenAPI description, but only of the endpoints of models that take JSON."""
    described: dict[str, Any] = json.loads(FILE.read_text())
    offered = {endpoint.path for endpoint in ENDPOINTS if not endpoint.is_form}
    return {**described, "paths": {path: what for path, what in described["paths"].items() if path in offered}}


def described_requests(model: str) -> SearchStrategy[HostileRequest]:
    """Requests for a model: as they are described, and with something that the description forbids."""
    schema = schemathesis.openapi.from_dict(description())
    operations = [found.ok() for found in schema.get_all_operations()]
    cases = st.one_of(
        operation.as_strategy(generation_mode=mode) for operation in operations for mode in GenerationMode
    )
    return cases.map(lambda case: _request(case, model))


def _request(case: Any, model: str) -> HostileRequest:
    body = case.body
    if isinstance(body, dict):
        # Unknown models end at the router. Answers stay short.
        short = _SHORT.get(case.operation.path, {})
        body = {**short, **body, "model": model} | {name: value for name, value in short.items() if name in body}
    query = f"?{urlencode(case.query)}" if case.query else ""
    if isinstance(body, NotSet):
        body = b""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return make_request(case.method, f"{case.formatted_path}{query}", raw, {"content-type": "application/json"})
