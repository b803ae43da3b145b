"""The process of the hooks: whatever a hook does to it costs only its own call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rayllm.config import HookConfig
from rayllm.errors import ConfigError, HookError
from rayllm.serving.router.hooks.pool import HookPool
from rayllm.serving.router.hooks.process import Call, HookProcess, ProcessLostError, Result, check_hooks

FILE = Path(__file__).parent / "policies.py"
# Longer than a loaded machine takes for a call that does nothing.
TIMEOUT_S = 2.0
MAX_BYTES = 10_000


def hook(name: str = "check", **keys: Any) -> HookConfig:
    return HookConfig(callable=f"{FILE}:{name}", **{"timeout_s": TIMEOUT_S, **keys})


@asynccontextmanager
async def pool(*hooks: HookConfig) -> AsyncIterator[HookPool]:
    made = HookPool(hooks or (hook(),), MAX_BYTES)
    await made.start()
    try:
        yield made
    finally:
        await made.stop(0)


def call(model: str, timeout_s: float = TIMEOUT_S, **body: Any) -> Call:
    request = {"id": "r", "path": "/v1/completions", "model": model, "key": "", "tenant": "", "headers": {}}
    head = {"when": "request", "request": request, "has_body": True}
    return Call(0, timeout_s, head, json.dumps({"model": model, **body}).encode())


async def seen(made: HookPool) -> dict[str, Any]:
    """What the hook has seen of the process that runs it."""
    found: dict[str, Any] = json.loads((await made.run(call("show"))).body)["seen"]
    return found


async def waiting_calls(made: HookPool, go: Path, count: int) -> list[asyncio.Task[Result]]:
    """Calls that have begun, and end when there is the file `go`."""
    tasks = [asyncio.create_task(made.run(call("wait", 60, file=str(go)))) for _ in range(count)]
    begun = go.with_suffix(".begun")
    while not (begun.exists() and begun.stat().st_size == count):
        await asyncio.sleep(0.01)
    return tasks


@pytest.mark.parametrize(
    ("model", "result"),
    [
        ("plain", {"result": "allow"}),
        ("print", {"result": "allow"}),
        ("change", {"result": "change"}),
        ("refuse", {"result": "refuse", "message": "Not on Sundays.", "status": 451, "code": "sunday"}),
        ("raise", {"result": "fault", "message": "ValueError: boom"}),
        ("exit", {"result": "fault", "message": "SystemExit: 3"}),
        ("returns-nan", {"result": "fault"}),
        ("returns-much", {"result": "fault", "message": "ValueError: the returned body has more than 10000 bytes "}),
        ("returns-a-list", {"result": "fault"}),
    ],
)
async def test_what_a_hook_does_is_the_result(model: str, result: dict[str, Any]) -> None:
    async with pool() as made:
        head = (await made.run(call(model))).head
        assert {**result, "message": None}.items() <= {**head, "message": None}.items()
        assert head.get("message", "").startswith(result.get("message", ""))
        assert (await seen(made))["calls"] == 2, "the process is the same"


async def test_a_coroutine_that_takes_too_long_is_cancelled_in_its_process() -> None:
    async with pool() as made:
        before = await seen(made)
        result = await made.run(call("sleep", 0.05))
        assert result.head["result"] == "timeout"
        assert (await seen(made))["pid"] == before["pid"]


async def test_a_thread_that_hangs_costs_its_process_but_no_other_call() -> None:
    async with pool(hook("check_in_thread")) as made:
        result = await made.run(call("hang", 0.05))
        assert (result.head["result"], result.head["is_stuck"]) == ("timeout", True)
        assert (await made.run(call("plain"))).head["result"] == "allow"
        assert (await made.run(call("refuse"))).head["result"] == "refuse"


async def test_an_object_may_be_a_hook() -> None:
    async with pool(hook("policy")) as made:
        assert (await made.run(call("any"))).head["message"] == "By an object."


@pytest.mark.parametrize("fault", ["loop", "crash"])
async def test_a_hook_that_ends_its_process_alone_fails(fault: str) -> None:
    async with pool() as made:
        pid = (await seen(made))["pid"]
        with pytest.raises(HookError, match="blocked it" if fault == "loop" else "process ended"):
            await made.run(call(fault, 0.1))
        assert (await seen(made))["pid"] != pid


@pytest.mark.parametrize("fault", ["loop", "crash"])
async def test_calls_beside_one_that_ends_the_process_are_repeated(fault: str, tmp_path: Path) -> None:
    async with pool() as made:
        others = await waiting_calls(made, tmp_path / "go", 3)
        culprit = asyncio.create_task(made.run(call(fault, 0.1)))
        # The first of the others is repeated alone, and waits for the file, before or after the culprit's turn.
        while not made.is_repeating:
            await asyncio.sleep(0.01)
        assert (await made.run(call("plain"))).head["result"] == "allow", "new calls go on meanwhile"
        (tmp_path / "go").touch()
        with pytest.raises(HookError):
            await culprit
        assert [(await other).head["result"] for other in others] == ["allow"] * 3


async def test_a_call_given_up_by_its_caller_is_still_watched() -> None:
    async with pool() as made:
        pid = (await seen(made))["pid"]
        abandoned = asyncio.create_task(made.run(call("loop", 0.1)))
        await asyncio.sleep(0)
        other = asyncio.create_task(made.run(call("plain")))
        abandoned.cancel()
        assert (await other).head["result"] == "allow"
        while (await seen(made))["pid"] == pid:
            await asyncio.sleep(0.01)


async def test_the_process_ends_with_the_pool() -> None:
    async with pool() as made:
        pid = (await seen(made))["pid"]
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("callable", "said"),
    [
        ("rayllm.no_such_module:check", "No module named 'rayllm.no_such_module'"),
        ("rayllm.hooks:check", "rayllm.hooks has no `check`"),
        ("rayllm.hooks:_LONGEST_CODE", "cannot be called"),
        ("/no/such/file.py:check", "there is no file /no/such/file.py"),
    ],
)
async def test_a_function_that_cannot_be_imported_is_named_with_its_key(callable: str, said: str) -> None:
    hooks = (hook(), HookConfig(callable=callable))
    with pytest.raises(ConfigError, match=r"^hooks\.1\.callable: ") as raised:
        await HookPool(hooks, MAX_BYTES).start()
    assert said in raised.value.message
    with pytest.raises(ConfigError, match=r"^args\.router: hooks\.1\.callable: "):
        check_hooks(hooks, "args.router")


@pytest.mark.parametrize("code", ["1 / 0", "import os; os.abort()", "raise SystemExit(1)"])
async def test_a_module_that_fails_is_named_with_its_line(code: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(f"\n{code}\n")
    with pytest.raises(ConfigError) as raised:
        check_hooks([HookConfig(callable=f"{tmp_path}/broken.py:check")], "args.router")
    assert ("broken.py, line 2" in raised.value.message) == ("abort" not in code)


def test_a_process_that_ends_while_a_call_is_sent_is_lost_in_uvloop_too() -> None:
    """Ray Serve's event loop; it has an error of its own for pipes that are closed."""

    async def send() -> None:
        process = await HookProcess.start((hook(),), MAX_BYTES)
        assert process._process.stdin is not None
        process._process.stdin.close()
        await process._process.stdin.wait_closed()
        running = asyncio.create_task(process.run(call("show")))
        await asyncio.sleep(0)
        # It may have ended by itself, since nobody writes to it any more.
        with suppress(ProcessLookupError):
            process._process.kill()
        with pytest.raises(ProcessLostError):
            await running
        await process.stop()

    uvloop.run(send())
