"""Whitespace patterns: converted to regular expressions, or refused cheaply."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import psutil
import pytest

from rayllm.engine.middleware.deprecated_fields import replace_deprecated
from rayllm.engine.structured_output import ConstraintGate
from rayllm.engine.structured_output.json_schema import MAX_DEPTH, MAX_PATTERN
from rayllm.engine.structured_output.limits import MAX_CHARACTERS
from rayllm.engine.structured_output.process_limits import CPU_S, MEMORY_BYTES
from rayllm.errors import RequestError, UnavailableError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def lists(depth: int) -> dict[str, Any]:
    """A schema within the bounds whose regular expression more than doubles with each level."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth - 1):
        schema = {"type": "array", "items": schema}
    return schema


def conversions() -> list[psutil.Process]:
    """The processes that convert schemas."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "rayllm.engine.structured_output.whitespace_process" in child.cmdline():
                found.append(child)
    return found


async def admit(gate: ConstraintGate, body: dict[str, Any]) -> dict[str, Any]:
    """Admit a request, however busy this machine is."""
    while True:
        try:
            return await gate.admit(body)
        except UnavailableError:
            continue


async def admitted(schema: Any, pattern: str = "_?") -> str:
    sent = replace_deprecated({"guided_json": schema, "guided_whitespace_pattern": pattern})
    body = await admit(ConstraintGate(None), sent)
    assert sent["structured_outputs"] == {"json": schema, "whitespace_pattern": pattern}
    [(kind, regex)] = body["structured_outputs"].items()
    assert kind == "regex"
    return str(regex)


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)])
async def test_a_whitespace_pattern_holds(schema: Any) -> None:
    regex = await admitted(schema)
    assert re.fullmatch(regex, '{_"a":_7_}')
    assert not re.fullmatch(regex, '{ "a": 7 }')


@pytest.mark.parametrize(
    ("schema", "pattern", "said"),
    [
        (lists(MAX_DEPTH), " ", "takes too long or too much memory"),
        (lists(12), " ", f"becomes a regular expression longer than {MAX_CHARACTERS['regex']} characters"),
        (lists(MAX_DEPTH + 1), " ", f"nests deeper than {MAX_DEPTH} levels"),
        ({"type": "nothing"}, " ", "cannot be converted"),
        ("{", " ", "is not valid JSON"),
        (SCHEMA, " " * (MAX_PATTERN + 1), f"longer than {MAX_PATTERN} characters"),
    ],
)
async def test_what_cannot_be_one_is_refused_in_little_memory(schema: Any, pattern: str, said: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RequestError, match=said) as caught:
        await admitted(schema, pattern)
    assert (caught.value.status, caught.value.param) == (400, "structured_outputs")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


async def test_what_a_busy_machine_does_not_convert_is_not_remembered_as_a_fault() -> None:
    gate = ConstraintGate(None)
    body = replace_deprecated({"guided_json": lists(MAX_DEPTH), "guided_whitespace_pattern": " "})
    running = asyncio.create_task(gate.admit(body))
    while not (converting := conversions()):
        assert not running.done()
        await asyncio.sleep(0.01)
    # The end of its time.
    converting[0].send_signal(signal.SIGALRM)
    with pytest.raises(UnavailableError, match="busy"):
        await running
    with pytest.raises(RequestError, match="takes too long or too much memory"):
        await admit(gate, body)


def test_the_process_itself_is_bounded() -> None:
    asked = json.dumps({"schema": json.dumps(lists(MAX_DEPTH)), "pattern": " ", "longest": 1})
    module = "rayllm.engine.structured_output.whitespace_process"
    process = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(asked.encode())
    process.stdin.close()
    # Not `used.ru_maxrss`: a child starts with the peak of the process that made it.
    peak = 0
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        peak = max(peak, psutil.Process(process.pid).memory_info().rss)
    _, status, used = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert process.returncode != 0
    assert 0 < peak < MEMORY_BYTES + 200_000_000
    assert used.ru_utime + used.ru_stime < CPU_S + 2


async def test_a_conversion_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = ConstraintGate(None)
    body = replace_deprecated({"guided_json": SCHEMA, "guided_whitespace_pattern": "_"})
    first = await gate.admit(body)
    monkeypatch.delattr("asyncio.create_subprocess_exec")
    assert await gate.admit(body) == first


@pytest.mark.parametrize("option", ["disable_any_whitespace", "disable_additional_properties"])
async def test_an_option_that_vllm_ignores_is_refused_where_it_does_not_hold(option: str) -> None:
    body = {"structured_outputs": {"json": SCHEMA, option: True}}
    with pytest.raises(RequestError, match=f"{option}. cannot be set by request.*{option}: true") as caught:
        await ConstraintGate(None).admit(body)
    assert caught.value.param == f"structured_outputs.{option}"
    assert await ConstraintGate(None, enforced=[option]).admit(body) == body
    asked_for_nothing = {"structured_outputs": {"json": SCHEMA, option: False}}
    assert await ConstraintGate(None).admit(asked_for_nothing) == asked_for_nothing
