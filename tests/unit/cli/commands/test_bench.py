"""`rayllm bench`: figures that hang together, failures among them, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from click.testing import CliRunner, Result

from rayllm.cli.commands.bench import command
from rayllm.cli.terminal.output_files import FileError
from rayllm.client.api.errors import ServerError
from rayllm.errors import ConfigError
from tests.servers.openai import OpenAIServer, Script, chunk
from tests.servers.process import free_port

BUSY = Script(503, {"error": {"message": "Full.", "code": "overloaded"}})
FINE = Script(events=(chunk("stop", content="a"),))


@pytest.fixture
def served() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


def bench(served: OpenAIServer, *arguments: str) -> Result:
    return CliRunner(env={"RAYLLM_URL": served.url}).invoke(command, list(arguments))


def figures(served: OpenAIServer, *arguments: str) -> dict[str, Any]:
    result = bench(served, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def measured(served: OpenAIServer, requests: int) -> list[Any]:
    """The requests of the load itself, which come last."""
    return served.asked[-requests:]


def test_the_figures_hang_together(served: OpenAIServer) -> None:
    served.pace_s = 0.001
    found = figures(served, "--requests", "20", "--concurrency", "4", "--output-tokens", "6", "--goodput", "e2e:60000")
    assert (found["completed"], found["failed"], found["unfinished"], found["failures"]) == (20, 0, 0, [])
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20 * 256, 20 * 6)
    assert found["max_concurrency"] == 4
    assert found["request_throughput"] == pytest.approx(20 / found["duration_s"])
    assert found["output_throughput"] == pytest.approx(120 / found["duration_s"])
    assert found["goodput"] == {
        "limits_ms": {"e2e": 60000},
        "good": 20,
        "share": 1,
        "request_goodput": found["request_throughput"],
    }
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        shares = [found[name][share] for share in ("p50", "p90", "p95", "p99")]
        assert shares == sorted(shares)
        assert 0 < found[name]["mean"] < found["e2e_ms"]["p99"] * 2
    assert found["ttft_ms"]["mean"] < found["e2e_ms"]["mean"]
    assert [row["index"] for row in found["rows"]] == list(range(20))
    assert all(len(row["itl_ms"]) == 5 and row["output_tokens"] == 6 for row in found["rows"])
    assert 0 < found["own_cpu_share"] < 2


def test_people_get_a_table(served: OpenAIServer) -> None:
    result = bench(
        served, "--requests", "5", "--output-tokens", "4", "--percentiles", "50,99.9", "--goodput", "e2e:60000"
    )
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("small, chat/completions: 5 completed, 0 failed in ")
    assert lines[2] == "tokens of a prompt: 256; of an answer: 4"
    assert [line.split(",")[0].split("  ")[0] for line in lines[4:9]] == ["", "TTFT", "ITL", "TPOT", "E2E"]
    assert lines[4].split() == ["mean", "p50", "p99.9"]
    assert "100.0 % meet e2e 60000 ms" in result.stdout
    assert lines[-1].startswith("load generator: ")


def test_a_load_generator_that_is_too_busy_says_so(served: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--requests", "2", "--output-tokens", "2"]
    monkeypatch.setattr(time, "process_time", time.perf_counter)
    assert "warning: the load generator itself took 1.00 of a core" in bench(served, *arguments).stderr
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    assert "warning" not in bench(served, *arguments).stderr


def test_a_rate_that_was_not_kept_says_so(served: OpenAIServer) -> None:
    served.pace_s = 0.02
    arguments = ["--requests", "6", "--rate", "1000", "--output-tokens", "2"]
    assert "after they were due: --concurrency held them back" in bench(served, *arguments, "--concurrency", "1").stderr


def test_tokens_that_come_together_are_told(served: OpenAIServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a\n")
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}}
    served.script(FINE, Script(events=(chunk(content="a b c"), chunk("stop", content="d"), usage)))
    result = bench(served, "--dataset", str(file))
    assert "a chunk holds 4.50 tokens on average: ITL is the time between chunks" in result.stderr


def test_lengths_are_drawn_from_ranges_and_prompts_share_a_beginning(served: OpenAIServer) -> None:
    arguments = [
        "--requests",
        "30",
        "--prompt-tokens",
        "60:90",
        "--output-tokens",
        "2:5",
        "--shared-prefix-tokens",
        "40",
        "--seed",
        "1",
    ]
    rows = figures(served, *arguments)["rows"]
    inputs, outputs = {row["input_tokens"] for row in rows}, {row["output_tokens"] for row in rows}
    assert inputs <= set(range(60, 91))
    assert len(inputs) > 5
    assert outputs == {2, 3, 4, 5}
    prompts = [body["messages"][0]["content"] for body in measured(served, 30)]
    assert len({" ".join(prompt.split()[:20]) for prompt in prompts}) == 1
    assert len(set(prompts)) == 30


def test_without_a_seed_no_load_is_like_another(served: OpenAIServer) -> None:
    seeds = {figures(served, "--requests", "1")["seed"] for _ in range(2)}
    assert len(seeds) == 2
    assert len({body["messages"][0]["content"] for body in served.asked if body["max_tokens"] == 64}) == 2


def test_the_seed_decides_the_load(served: OpenAIServer) -> None:
    arguments = ["--requests", "8", "--concurrency", "1", "--prompt-tokens", "60:90", "--output-tokens", "2:5"]
    loads = []
    for seed in ("1", "1", "2"):
        figures(served, *arguments, "--seed", seed)
        loads.append(measured(served, 8))
    assert loads[0] == loads[1] != loads[2]


def test_a_rate_sends_at_random_times(served: OpenAIServer) -> None:
    found = figures(served, "--requests", "20", "--rate", "200", "--output-tokens", "1")
    assert (found["rate"], found["concurrency"]) == (200, None)
    assert found["rows"][-1]["due_s"] == pytest.approx(0.1)
    assert len({row["due_s"] for row in found["rows"]}) == 20


def test_completions_are_asked_with_prompts(served: OpenAIServer) -> None:
    found = figures(
        served, "--requests", "3", "--endpoint", "completions", "--prompt-tokens", "20", "--output-tokens", "2"
    )
    assert found["total_input_tokens"] == 60
    assert {got.path for got in served.got if got.path.endswith("completions")} == {"/v1/completions"}


def test_a_dataset_is_asked_in_turn_and_answered_as_the_model_likes(served: OpenAIServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b c"}], "max_tokens": 1}\n')
    rows = figures(served, "--dataset", str(file), "--concurrency", "1")["rows"]
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [(8, 3), (9, 1)]
    rows = figures(served, "--dataset", str(file), "--concurrency", "1", "--requests", "3", "--output-tokens", "5")[
        "rows"
    ]
    assert [row["output_tokens"] for row in rows] == [5, 1, 5]


def test_a_warmup_is_not_measured(served: OpenAIServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a\n")
    served.script(FINE, BUSY, FINE)
    result = bench(served, "--dataset", str(file), "--requests", "3", "--warmup", "2", "--json")
    assert "warming up with 2 requests" in result.stderr
    assert "1 of them failed." in result.stderr
    # The first request is the one that learns what the server understands.
    assert len(served.asked) == 1 + 2 + 3
    assert len(json.loads(result.stdout)["rows"]) == 3


def test_a_server_that_refuses_fields_is_asked_without_them(served: OpenAIServer) -> None:
    served.refuses = ("ignore_eos", "min_tokens", "stream_options")
    result = bench(served, "--requests", "2", "--output-tokens", "50")
    assert result.exit_code == 0
    assert "the server refuses" in result.stderr
    assert "reports no usage: output tokens are the number of chunks" in result.stderr
    assert "of an answer: 3" in result.stdout


def test_prompts_without_tokenize_say_that_they_were_not_counted(served: OpenAIServer) -> None:
    served.has_tokenize = False
    assert figures(served, "--requests", "2")["prompt_tokens_are_counted"] is False
    served.has_tokenize = True
    assert figures(served, "--requests", "2")["prompt_tokens_are_counted"] is True


def test_failures_are_grouped_and_shown(served: OpenAIServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a\n")
    served.script(FINE, BUSY, Script(events=(chunk(content="a"),), breaks=True), BUSY)
    result = bench(served, "--dataset", str(file), "--requests", "5", "--concurrency", "1", "--goodput", "e2e:60000")
    assert result.exit_code == 0
    assert "2 completed, 3 failed" in result.stdout
    assert f"failed: 2 × 503 overloaded: {served.url} answered 503: Full." in result.stdout
    assert "failed: 1 × the connection was lost" in result.stdout
    assert "40.0 % meet" in result.stdout


def test_where_all_fail_the_exit_says_so(served: OpenAIServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a\n")
    served.script(FINE, BUSY, BUSY)
    result = bench(served, "--dataset", str(file), "--requests", "2", "--png", str(tmp_path / "x.png"))
    assert result.exit_code == 1
    assert "0 completed, 2 failed" in result.stdout
    assert (tmp_path / "x.png").exists()


def test_a_server_that_cannot_be_used_is_told_before_any_load(served: OpenAIServer) -> None:
    wrong = bench(served, "--model", "smal")
    assert isinstance(wrong.exception, ServerError)
    assert "did you mean `small`?" in wrong.exception.message
    down = CliRunner().invoke(command, ["--url", f"http://127.0.0.1:{free_port()}", "--model", "m"])
    assert isinstance(down.exception, ServerError)


def test_prompts_that_are_too_short_are_refused(served: OpenAIServer) -> None:
    result = bench(served, "--prompt-tokens", "5")
    assert isinstance(result.exception, ConfigError)
    assert "the minimum is 8" in result.exception.message


def test_results_go_into_files_that_are_not_there(served: OpenAIServer, tmp_path: Path) -> None:
    output, png = tmp_path / "load.json", tmp_path / "load.png"
    arguments = ["--requests", "4", "--output-tokens", "2", "--output", str(output), "--png", str(png)]
    assert bench(served, *arguments).exit_code == 0
    assert json.loads(output.read_text())["completed"] == 4
    assert png.read_bytes().startswith(b"\x89PNG")
    asked = len(served.got)
    assert isinstance(bench(served, *arguments).exception, FileError)
    assert len(served.got) == asked
    assert bench(served, *arguments, "--force").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["load.json", "load.png"]


def test_without_matplotlib_there_is_no_picture(served: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = bench(served, "--png", "x.png")
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'rayllm[plots]'" in result.exception.message
    assert served.got == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--prompt-tokens", "9:3"], "needs 1 ≤ MIN ≤ MAX"),
        (["--output-tokens", "0"], "needs 1 ≤ MIN ≤ MAX"),
        (["--output-tokens", "a:b"], "neither a number nor MIN:MAX"),
        (["--rate", "0"], "--rate"),
        (["--goodput", "speed:1"], "takes ttft, itl, tpot, e2e"),
        (["--percentiles", "50,x"], "is not a list such as"),
        (["--percentiles", "101"], "from 0 to 100"),
        (["--dataset", "none.jsonl"], "cannot be read"),
        (["--dataset", __file__, "--prompt-tokens", "9"], "are for generated prompts"),
        (["--force"], "--force is for the files"),
    ],
)
def test_wrong_calls_are_usage(served: OpenAIServer, arguments: list[str], expected: str) -> None:
    result = bench(served, *arguments)
    assert (result.exit_code, served.got) == (2, [])
    assert expected in result.stderr


def test_ctrl_c_shows_what_there_is(served: OpenAIServer, tmp_path: Path) -> None:
    file, output = tmp_path / "prompts.txt", tmp_path / "load.json"
    file.write_text("a\n")
    served.script(FINE, FINE, BUSY, Script(events=(chunk(content="a"),), waits=True))
    run = [sys.executable, "-m", "rayllm", "bench", "--dataset", str(file), "--requests", "9", "--concurrency", "1"]
    env = {**os.environ, "RAYLLM_URL": served.url}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # As a shell has what it starts in the background: Ctrl-C is ignored, but for who says otherwise.
    deaf = ["bash", "-c", 'trap "" INT; exec "$@"', "deaf", *run, "--output", str(output)]
    with subprocess.Popen(deaf, env=env, **pipes) as process:
        assert served.waiting.wait(30)
        process.send_signal(signal.SIGINT)
        shown, stderr = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in stderr) == (130, False)
    assert "1 completed, 1 failed, 7 not finished" in shown
    assert served.left.wait(5)
    assert len(json.loads(output.read_text())["rows"]) == 3


def test_a_terminal_gets_a_plot_unless_it_wants_none(served: OpenAIServer) -> None:
    shown = []
    for more in ([], ["--no-plot"]):
        run = ["-m", "rayllm", "bench", "--requests", "4", "--output-tokens", "3", *more]
        child = pexpect.spawn(sys.executable, run, env={**os.environ, "RAYLLM_URL": served.url}, encoding="utf-8")  # type: ignore[arg-type]
        child.expect(pexpect.EOF, timeout=30)
        shown.append(str(child.before))
        child.close()
        assert child.exitstatus == 0
    plotted, plain = shown
    assert "time to first token" in plotted
    assert "output tokens a second" in plotted
    assert "output tokens a second" not in plain
    assert "4 of 4 done, 0 failed" in plain
