"""JSON schemas that people have, sent as constraints: an answer that ends with `stop` satisfies its schema.

python -m benchmarks.hostility.schemas URL MODEL   send one request for each schema, streamed in every other; fails at
                                                   the first answer that does not satisfy its schema, and at refusals
                                                   that are not 400
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import httpx
import jsonschema

from tests.vllm.schemas import collections

Schemas = Iterable[tuple[str, dict[str, Any]]]

_USER = {"role": "user", "content": "Answer in JSON."}


def send_schemas(url: str, model: str, schemas: Schemas, tokens: int = 300, seed: int = 0) -> Counter[str]:
    """Ask a model for answers to schemas.

    Args:
        url: the service's.
        model: the model's name.
        schemas: the schemas with their names.
        tokens: the most that each answer may have.
        seed: the first answer's; the others have the following ones.

    Returns:
        How many answers were complete (`stop`), cut off (`length`) or refused (`400`).

    Raises:
        AssertionError: an answer with `stop` does not satisfy its schema, or a refusal is none of the client's fault.
    """
    outcomes: Counter[str] = Counter()
    with httpx.Client(base_url=url, timeout=120) as client:
        for number, (name, schema) in enumerate(schemas):
            wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            body = {"model": model, "messages": [_USER], "max_tokens": tokens, "temperature": 1, "seed": seed + number}
            reply = client.post("/v1/chat/completions", json={**body, "response_format": wanted, "stream": number % 2})
            if reply.status_code != 200:
                assert reply.status_code == 400, f"{name}: {reply.text}"
                outcomes["400"] += 1
                continue
            text, finish = _streamed(reply.text) if number % 2 else _whole(reply.json())
            outcomes[finish] += 1
            if finish == "stop":
                _check(name, schema, text)
    return outcomes


def _whole(reply: dict[str, Any]) -> tuple[str, str]:
    choice = reply["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def _streamed(events: str) -> tuple[str, str]:
    texts, finish = [], ""
    for event in events.split("\n\n"):
        data = event.removeprefix("data: ")
        if not data.startswith("{"):
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            return "", "error"
        for choice in chunk["choices"]:
            texts.append(choice["delta"].get("content") or "")
            finish = choice["finish_reason"] or finish
    return "".join(texts), finish


def _check(name: str, schema: dict[str, Any], text: str) -> None:
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        raise AssertionError(f"{name}: {text[:500]}: {str(error)[:500]}") from None


def main() -> None:
    """Send all of them, and print what became of them."""
    outcomes = send_schemas(sys.argv[1], sys.argv[2], collections().items())
    print(", ".join(f"{count} × {outcome}" for outcome, count in outcomes.most_common()))


if __name__ == "__main__":
    main()
