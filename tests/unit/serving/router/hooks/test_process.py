"""The process of the hooks, and what they may do to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rayllm.config import HookConfig
from rayllm.core.errors import ConfigError, HookError
from rayllm.serving.router.hooks import process
from rayllm.serving.router.hooks.process import HookProcess, _Call, check_hooks
from tests.fakes.clock import pass_time, until

FILE = Path(__file__).parent / "policies.py"
# Longer than a loaded machine takes for a call that does nothing.
TIMEOUT_S = 2.0
MAX_BYTES = 10_000


def hook(name: str = "check", **keys: Any) -> HookConfig:
    return HookConfig(callable=f"{FILE}:{name}", **{"timeout_s": TIMEOUT_S, **keys})


@asynccontextmanager
async def running(*hooks: HookConfig, grace_s: float = 5) -> AsyncIterator[HookProcess]:
    made = HookProcess(hooks or (hook(),), MAX_BYTES, grace_s)
    await made.start()
    try:
        yield made
    finally:
        await made.stop(0)


async def run(made: HookProcess, model: str, index: int = 0, **body: Any) -> tuple[dict[str, Any], bytes]:
    request = {"id": "r", "path": "/v1/completions", "model": model, "key": "", "tenant": "", "headers": {}}
    head = {"when": "request", "request": request, "has_body": True}
    return await made.run(index, head, json.dumps({"model": model, **body}).encode())


async def seen(made: HookProcess) -> dict[str, Any]:
    """What the hook has seen of the process that runs it."""
    _, body = await run(made, "show")
    found: dict[str, Any] = json.loads(body)["seen"]
    return found


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
    async with running() as made:
        head, _ = await run(made, model)
        assert {**result, "message": None}.items() <= {**head, "message": None}.items()
        assert head.get("message", "").startswith(result.get("message", ""))
        assert (await seen(made))["calls"] == 2, "the process is the same"


async def test_a_coroutine_that_takes_too_long_is_cancelled_in_its_process() -> None:
    async with running(hook(), hook(timeout_s=0.05)) as made:
        before = await seen(made)
        head, _ = await run(made, "sleep", index=1)
        assert (head["result"], head["message"]) == ("fault", "it took more than 0.05 s (timeout_s)")
        assert (await seen(made))["pid"] == before["pid"]


async def test_an_object_may_be_a_hook() -> None:
    async with running(hook("policy")) as made:
        assert (await run(made, "any"))[0]["message"] == "By an object."


@pytest.mark.parametrize(("fault", "said"), [("loop", "blocks the process"), ("crash", "process of the hooks ended")])
async def test_a_hook_that_breaks_the_process_fails_and_another_is_started(fault: str, said: str) -> None:
    async with running(hook(), hook(timeout_s=0.5), grace_s=0) as made:
        pid = (await seen(made))["pid"]
        with pytest.raises(HookError, match=said):
            await run(made, fault, index=1)
        while (now := (await seen(made))["pid"]) == pid:
            await asyncio.sleep(0.01)
        assert (await seen(made))["pid"] == now


@pytest.mark.parametrize("fault", ["loop", "crash"])
async def test_calls_in_a_process_that_ends_fail(fault: str, tmp_path: Path) -> None:
    async with running(hook(timeout_s=60), hook(timeout_s=0.5), grace_s=0) as made:
        go = tmp_path / "go"
        others = [asyncio.create_task(run(made, "wait", file=str(go))) for _ in range(3)]
        begun = go.with_suffix(".begun")
        while not (begun.exists() and begun.stat().st_size == 3):
            await asyncio.sleep(0.01)
        with pytest.raises(HookError):
            await run(made, fault, index=1)
        for other in others:
            with pytest.raises(HookError, match="the process of the hooks ended"):
                await other
        assert (await run(made, "plain"))[0]["result"] == "allow", "new calls find another process"


async def test_a_call_given_up_by_its_caller_that_blocks_the_process_is_noticed_by_the_next() -> None:
    async with running(hook(), hook(timeout_s=0.5), grace_s=0) as made:
        abandoned = asyncio.create_task(run(made, "loop", index=1))
        await asyncio.sleep(0)
        abandoned.cancel()
        with pytest.raises(HookError):
            await run(made, "plain", index=1)
        assert (await run(made, "plain"))[0]["result"] == "allow"


async def test_calls_wait_as_long_as_their_process_answers_others() -> None:
    async with running(hook(timeout_s=0.5), grace_s=1) as made:
        # Each blocks the process: the last waits for longer than its own limit.
        answers = await asyncio.gather(*(run(made, "block", seconds=0.1) for _ in range(30)))
        assert {head["result"] for head, _ in answers} == {"allow"}


async def test_a_call_is_put_off_by_each_answer_and_by_a_minute_at_most() -> None:
    async with running() as made:
        assert made._process
        begun = asyncio.get_running_loop().time()
        async with asyncio.timeout_at(begun + 100) as limit:
            call = _Call(made._process, asyncio.Future(), limit, patience_s=100, latest=begun + 160)
            for answered, given_up in [(0, 100), (30, 130), (20, 130), (50, 150), (90, 160), (150, 160)]:
                call.put_off(begun + answered)
                assert limit.when() == begun + given_up


async def test_a_client_that_leaves_does_not_end_the_start_for_others(tmp_path: Path) -> None:
    imports, go = tmp_path / "imports", tmp_path / "go"
    made = HookProcess([slow_hook(tmp_path, f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)")], 100)
    try:
        leaving, staying = (asyncio.create_task(run(made, "any")) for _ in range(2))
        while not imports.exists():
            await asyncio.sleep(0.01)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        go.touch()
        assert (await staying)[0]["result"] == "allow"
        assert imports.read_text() == "x"
    finally:
        await made.stop(0)


async def test_a_start_that_fails_late_is_not_tried_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_PAUSE_S", 30)
    imports, go = tmp_path / "imports", tmp_path / "go"
    waits = f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    made = HookProcess([slow_hook(tmp_path, f"{waits}\n1 / 0")], 1000)
    starting = asyncio.create_task(run(made, "any"))
    await until(imports.exists)
    pass_time(31)
    go.touch()
    with pytest.raises(HookError, match="ZeroDivisionError"):
        await starting
    with pytest.raises(HookError, match=r"cannot be started$"):
        await run(made, "any")
    assert imports.read_text() == "x"


def slow_hook(folder: Path, code: str) -> HookConfig:
    """A hook whose module notes each import in the file `imports`, and then runs some code."""
    lines = ["import pathlib, time", f"open({str(folder / 'imports')!r}, 'a').write('x')", code]
    (folder / "slow.py").write_text("\n".join([*lines, "async def check(request): pass"]))
    return HookConfig(callable=f"{folder}/slow.py:check", timeout_s=TIMEOUT_S)


async def test_threads_that_hang_end_the_process_when_they_are_many() -> None:
    async with running(hook("check_in_thread", timeout_s=0.2), hook("check_in_thread")) as made:
        hanging = await asyncio.gather(*(run(made, "hang") for _ in range(63)))
        assert {head["message"] for head, _ in hanging} == {"it took more than 0.2 s (timeout_s)"}
        assert (await run(made, "refuse", index=1))[0]["result"] == "refuse"
        with pytest.raises(HookError, match=r"ended \(exit status 1\)"):
            await run(made, "hang")
        assert (await run(made, "refuse", index=1))[0]["result"] == "refuse"


async def test_the_process_ends_when_it_is_stopped() -> None:
    async with running() as made:
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
        await HookProcess(hooks, MAX_BYTES).start()
    assert said in raised.value.message
    with pytest.raises(ConfigError, match=r"^args\.router: hooks\.1\.callable: "):
        check_hooks(hooks, "args.router")


@pytest.mark.parametrize("code", ["1 / 0", "import os; os.abort()", "raise SystemExit(1)"])
async def test_a_module_that_fails_is_named_with_its_line(code: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(f"\n{code}\n")
    with pytest.raises(ConfigError) as raised:
        check_hooks([HookConfig(callable=f"{tmp_path}/broken.py:check")], "args.router")
    assert ("broken.py, line 2" in raised.value.message) == ("abort" not in code)
