"""Fields of OpenAI's API that vLLM would ignore though they matter, or refuse though they do not."""

from typing import Any

from rayllm.core.errors import RequestError

Body = dict[str, Any]

_REFUSED = {
    "functions": "`functions` and `function_call` are old; send `tools` and `tool_choice` instead.",
    "moderation": "This service moderates no single request; ask /v1/moderations, or set `router.guards` for all.",
}


def with_known_fields(body: Body) -> Body:
    """A copy of `body` without values that vLLM refuses. Raises RequestError for what the answer would lack."""
    for name, message in _REFUSED.items():
        if body.get(name):
            raise RequestError(message, name)
    modalities, include = body.get("modalities"), body.get("include")
    if isinstance(modalities, list) and any(modality != "text" for modality in modalities):
        raise RequestError("Models here answer with text only; leave `modalities` and `audio` out.", "modalities")
    known = {name: value for name, value in body.items() if (name, value) != ("service_tier", "fast")}
    if isinstance(include, list):
        # Searches are hosted tools, and not run.
        known["include"] = [value for value in include if not str(value).startswith("web_search_call.")]
    return known
