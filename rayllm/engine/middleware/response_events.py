"""Corrects the last events of streams of the Responses API.

vLLM ends every stream with `response.completed`, and says that an item which a limit has cut off is complete.
"""

import json
from typing import Any

_ITEM_DONE, _COMPLETED = b"event: response.output_item.done\n", b"event: response.completed\n"


def corrected_response(held: bytes, chunk: bytes) -> tuple[bytes, bytes]:
    """What to send when vLLM writes `chunk`, which is one event, and what to hold back.

    The last event of an item is held back until the next event, which may say that the item was cut off.
    """
    if chunk.startswith(_ITEM_DONE):
        return held, chunk
    if not chunk.startswith(_COMPLETED) or (event := _parsed(chunk))["response"]["status"] != "incomplete":
        return held + chunk, b""
    for item in event["response"]["output"][-1:]:
        item["status"] = "incomplete"
    done = _event({**_parsed(held), "item": event["response"]["output"][-1]}) if held else b""
    return done + _event({**event, "type": "response.incomplete"}), b""


def _parsed(chunk: bytes) -> Any:
    return json.loads(chunk.partition(b"\ndata: ")[2])


def _event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
