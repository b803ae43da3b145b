"""Checks streams of the Responses API from their first event to their last, as OpenAI sends them."""

from __future__ import annotations

import json
from typing import Any

Event = dict[str, Any]

_ENDS = ("completed", "incomplete")
# Item → the prefix of the events that stream its text, and the field with the whole text.
_TEXTS = {
    "message": ("response.output_text", "text"),
    "reasoning": ("response.reasoning_text", "text"),
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
_WITH_PARTS = ("message", "reasoning")


def events_of(stream: str) -> list[Event]:
    """The events of a stream; asserts that each is named by its type and numbered in order."""
    events = []
    for number, block in enumerate(stream.removesuffix("\n\n").split("\n\n")):
        name, separator, data = block.removeprefix("event: ").partition("\ndata: ")
        assert separator, block
        event = json.loads(data)
        assert (name, event["sequence_number"]) == (event["type"], number), block
        events.append(event)
    return events


def check_stream(stream: str) -> dict[str, Any]:
    """The response at the end of a whole stream; asserts that all events are those of OpenAI's API, and agree."""
    created, in_progress, *events, last = events_of(stream)
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    response: dict[str, Any] = last["response"]
    for first in (created["response"], in_progress["response"]):
        assert (first["id"], first["status"], first["output"]) == (response["id"], "in_progress", [])
        assert (first["created_at"], first["model"]) == (response["created_at"], response["model"])
    assert last["type"] == f"response.{response['status']}"
    items = _Items()
    for event in events:
        items.read(event)
    assert items.done == response["output"]
    assert items.open is None, "an item that was added is not done"
    check_response(response)
    assert (response["output"] or [response])[-1].get("status", "completed") == response["status"]
    return response


def check_response(response: dict[str, Any]) -> None:
    """Assert that the status of a whole response agrees with those of its items, and that its usage is complete."""
    status, output, usage = response["status"], response["output"], response["usage"]
    assert status in _ENDS
    reason = response["incomplete_details"] and response["incomplete_details"]["reason"]
    assert reason == ("max_output_tokens" if status == "incomplete" else None)
    # Custom calls have none unless they are cut, and reasoning only in streams.
    assert {item.get("status") or "completed" for item in output[:-1]} <= {"completed"}
    ids = [item["id"] for item in output] + [item["call_id"] for item in output if "call_id" in item]
    assert len(set(ids)) == len(ids)
    for item in output if status == "completed" else ():
        if item["type"] == "function_call":
            assert isinstance(json.loads(item["arguments"]), dict)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert isinstance(usage["input_tokens_details"]["cached_tokens"], int)
    assert 0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


class _Items:
    """The items of a stream so far: those that are done, and the one that is open."""

    def __init__(self) -> None:
        self.done: list[Event] = []
        self.open: Event | None = None
        self._parts: list[Event] = []
        self._is_part_open = False
        self._streamed = ""
        self._whole: str | None = None

    def read(self, event: Event) -> None:
        """Take the next event, between the first two and the last."""
        kind = event["type"]
        assert event["output_index"] == len(self.done), event
        if kind == "response.output_item.added":
            self._add(event["item"])
            return
        assert self.open is not None, event
        if kind == "response.output_item.done":
            self._finish(event["item"])
            return
        assert event["item_id"] == self.open["id"], event
        if kind.startswith("response.content_part."):
            self._part(kind, event)
        else:
            self._text(kind, event)

    def _add(self, item: Event) -> None:
        assert self.open is None, "an item is added before the last one is done"
        assert item.get("status", "in_progress") == "in_progress", item
        if item["type"] in _WITH_PARTS:
            assert not item.get("content"), item
        else:
            assert item[_TEXTS[item["type"]][1]] == "", item
        self.open, self._parts, self._streamed, self._whole = item, [], "", None

    def _part(self, kind: str, event: Event) -> None:
        assert self.open is not None
        assert self.open["type"] in _WITH_PARTS, event
        assert event["content_index"] == len(self._parts), event
        if kind.endswith(".added"):
            assert not self._is_part_open, event
            assert event["part"]["text"] == "", event
            self._streamed, self._whole = "", None
        else:
            assert self._is_part_open, event
            assert event["part"]["text"] == self._whole == self._streamed, event
            self._parts.append(event["part"])
        self._is_part_open = kind.endswith(".added")

    def _text(self, kind: str, event: Event) -> None:
        assert self.open is not None
        prefix, _, action = kind.rpartition(".")
        expected, field = _TEXTS[self.open["type"]]
        if self.open["type"] in _WITH_PARTS:
            assert self._is_part_open, event
            assert event["content_index"] == len(self._parts), event
        assert (prefix, self._whole) == (expected, None), event
        if action == "delta":
            self._streamed += event["delta"]
        else:
            assert action == "done", event
            self._whole = event[field]
            assert self._whole == self._streamed, event

    def _finish(self, item: Event) -> None:
        opened = self.open
        assert opened is not None
        assert not self._is_part_open, item
        for name in ("id", "type", "call_id", "name", "namespace", "role"):
            assert item.get(name) == opened.get(name), item
        if item["type"] in _WITH_PARTS:
            assert item["content"] == self._parts, item
        else:
            assert item[_TEXTS[item["type"]][1]] == self._whole, item
        self.done.append(item)
        self.open = None
