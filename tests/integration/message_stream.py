"""What Anthropic's clients hold of a stream of `/v1/messages`: a machine that takes its events in order, or fails."""

from __future__ import annotations

import json
from typing import Any

_DELTAS = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "tool_use": ("input_json_delta",),
}


class MessageStream:
    """The message of a stream, once all of its events were taken.

    Attributes:
        message: as a plain reply has it; its tools' inputs are parsed.
        error: of the event that has ended the stream.
    """

    def __init__(self, stream: str) -> None:
        self.message: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None
        self._is_open = self._is_ended = False
        self._input = ""
        assert stream[-2:] == "\n\n"
        for event in stream.removesuffix("\n\n").split("\n\n"):
            if event.startswith(":"):
                continue  # a sign of life while the stream waits for a replica
            name, _, data = event.partition("\ndata: ")
            body = json.loads(data)
            assert name == f"event: {body['type']}"
            assert not self._is_ended, f"{body['type']} after the end"
            if body["type"] != "ping":
                getattr(self, "_" + body.pop("type"))(**body)
        assert self._is_ended

    def _message_start(self, message: dict[str, Any]) -> None:
        assert not self.message, "a second message"
        assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
        assert message["stop_reason"] is None
        assert message["usage"]["input_tokens"] >= 0
        self.message = message

    def _content_block_start(self, index: int, content_block: dict[str, Any]) -> None:
        assert self.message, "a block before the message"
        assert not self._is_open, "a block within another"
        assert index == len(self.message["content"]), "an index is left out"
        assert content_block["type"] in _DELTAS
        assert not any(content_block.get(field) for field in ("text", "thinking", "input")), "not empty at first"
        self._is_open, self._input = True, ""
        self.message["content"].append(content_block)

    def _content_block_delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._current(index)
        assert delta["type"] in _DELTAS[block["type"]]
        for field in ("text", "thinking", "signature"):
            if field in delta:
                block[field] = block.get(field, "") + delta[field]
        self._input += delta.get("partial_json", "")

    def _content_block_stop(self, index: int) -> None:
        block = self._current(index)
        if block["type"] == "tool_use" and self._input:
            block["input"] = json.loads(self._input)
        assert "thinking" not in block or block["signature"]
        self._is_open = False

    def _current(self, index: int) -> dict[str, Any]:
        assert self._is_open, "no block is open"
        assert index == len(self.message["content"]) - 1
        block: dict[str, Any] = self.message["content"][-1]
        return block

    def _message_delta(self, delta: dict[str, Any], usage: dict[str, Any]) -> None:
        assert not self._is_open
        assert self.message["stop_reason"] is None, "a second end"
        assert delta["stop_reason"]
        self.message |= {**delta, "usage": self.message["usage"] | usage}

    def _message_stop(self) -> None:
        assert self.message["stop_reason"], "no reason for the end"
        self._is_ended = True

    def _error(self, error: dict[str, Any]) -> None:
        assert error["type"].endswith("_error")
        assert error["message"]
        self.error, self._is_ended = error, True
