"""Coding agents take their turns on the real stack, and the table of docs/clients.md says what came out.

`make test-clients` installs the agents beside ours, in `.venv-clients`, and runs this.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from tests.agents.agents import AGENTS, CONTEXT, EYES, Agent
from tests.agents.turns import IMAGE, LONG, OTHERWISE, TURNS, Turn
from tests.integration.models import make_vision
from tests.integration.service import DEMO, ROOT
from tests.integration.test_documented_clients import CLIENTS, PATH, needs_clients
from tests.integration.test_leaving import within
from tests.integration.test_traces import running, wait_until_ready
from tests.servers.process import free_port

pytestmark = needs_clients
MARKED = re.compile(r"(<!-- agents -->\n).*?(<!-- /agents -->)", re.DOTALL)
PROGRAMS = Path(__file__).parent / "programs"
# Seconds of a turn; most take one to five, and the first some more, in which the prompt is read.
LIMIT = 120


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each agent's home, by its name."""
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def records(homes: Path) -> Path:
    """Where the hooks keep what was sent."""
    (homes / "records").mkdir()
    return homes / "records"


@pytest.fixture(scope="module")
def url(homes: Path, records: Path) -> Iterator[str]:
    """The demo with a longer context, which says what the turns say."""
    script = homes / "script.json"
    script.write_text(json.dumps({"turns": dict(scripted(homes)), "otherwise": OTHERWISE}))
    hook = str(Path(__file__).with_name("recorder.py"))
    hooks = [{"callable": f"{hook}:keep"}, {"callable": f"{hook}:note", "when": "usage"}]
    models = [acted_demo(script), with_eyes(acted_demo(script), homes / "eyes")]
    arguments = {"llm_configs": models, "router": {"hooks": hooks}}
    application = {"name": "rayllm", "route_prefix": "/", "import_path": "rayllm:app", "args": arguments}
    config, log, port = homes / "serve.yaml", homes / "log", free_port()
    config.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application]}))
    command = [sys.executable, "-m", "rayllm", "run", str(config), "--port", str(port)]
    with running(command, log, RECORDS=str(records)) as process:
        wait_until_ready(process, log)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, dict[str, str]]]:
    """How the turns of each agent ended, by their names; written to the page at the end."""
    found: dict[str, dict[str, str]] = {}
    yield found
    page = ROOT / "docs" / "clients.md"
    text = page.read_text()
    page.write_text(MARKED.sub(lambda marked: f"{marked[1]}{table(text, found)}{marked[2]}", text))


def table(page: str, found: dict[str, dict[str, str]]) -> str:
    """The table of agents and turns: what was found, and what the page says of other agents."""
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in page.splitlines() if " | ✓" in row or " | ✗" in row}
    for name, outcome in found.items():
        marks = ("✓" if outcome.get(turn.name) == "✓" else "✗" if turn.name in outcome else "" for turn in TURNS)
        rows[name] = f"| {' | '.join([name, *marks])} |"
    head = f"| agent | {' | '.join(turn.title for turn in TURNS)} |\n|{'---|' * (len(TURNS) + 1)}\n"
    return head + "".join(f"{rows[agent.name]}\n" for agent in AGENTS if agent.name in rows)


def acted_demo(script: Path) -> dict[str, Any]:
    """The demo's file, with an actor in its place."""
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    weights = DEMO.parent / "rayllm-demo" / "weights"
    demo["model_loading_config"]["model_source"] = str(weights)
    demo["lora_config"]["dynamic_lora_loading_path"] = str(weights.parent / "adapters")
    # Thousands of tokens, which would be read again in each turn.
    demo["generation_config"]["prompt_format"]["tools_in_first_user"] = True
    demo["max_request_context_length"] = CONTEXT
    demo["engine_kwargs"] |= {
        "hf_overrides": {"max_position_embeddings": CONTEXT},
        "logits_processors": ["tests.agents.actor:Actor"],
    }
    demo["runtime_env"]["env_vars"] |= {"SCRIPT": str(script), "PYTHONPATH": str(ROOT)}
    return demo


def with_eyes(model: dict[str, Any], folder: Path) -> dict[str, Any]:
    """An acted demo that takes images."""
    model["model_loading_config"] = {"model_id": EYES, "model_source": str(make_vision(folder))}
    model["engine_kwargs"]["hf_overrides"] = {"text_config": {"max_position_embeddings": CONTEXT}}
    del model["lora_config"]
    return model


def short(agent: Agent) -> str:
    """The agent's name in folders and marks."""
    return re.sub(r"\W+", "-", agent.name.lower())


def scripted(homes: Path) -> Iterator[tuple[str, Any]]:
    """What the model says in each turn of each agent that can take it."""
    for agent in AGENTS:
        for turn in TURNS:
            try:
                steps = turn.steps(agent, homes / short(agent))
            except KeyError:
                continue
            if agent.finish is not None:
                steps = [[agent.finish] if isinstance(step, str) and step != LONG else step for step in steps]
            yield f"{short(agent)}-{turn.name}", steps
    yield "inner", ["There is one file."]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Session:
    """An agent in its home, and how its turns ended."""

    def __init__(self, agent: Agent, home: Path, url: str) -> None:
        self.agent, self.home, self.url = agent, home, url
        shutil.copytree(PROGRAMS, home)
        Image.new("RGB", (64, 64), "red").save(home / IMAGE)
        (home / "node_modules").symlink_to(CLIENTS / "node_modules")
        self.write(agent.files)
        if agent.setup:
            self.run(list(agent.setup))

    def write(self, files: Any) -> None:
        for name, text in files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("ADDRESS", self.url))

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        environment = {name: value.replace("ADDRESS", self.url) for name, value in self.agent.environment.items()}
        command = [part.replace("ADDRESS", self.url) for part in command]
        return subprocess.Popen(
            [shutil.which(command[0], path=PATH) or command[0], *command[1:]],
            cwd=self.home,
            # Nothing of the caller's: a key or an address in the environment would be used.
            env={"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: list[str]) -> str:
        process = self.start(command)
        try:
            said, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            raise AssertionError(f"no end after {LIMIT} s: {said}") from None
        assert process.returncode == 0, said
        return said

    def interrupt(self, command: list[str], records: Path) -> None:
        """Send the agent what Ctrl-C sends, when its answer has begun."""
        before, ended = len(lines(records / "requests.jsonl")), len(lines(records / "ends.jsonl"))
        process = self.start(command)
        deadline = time.monotonic() + LIMIT
        while len(lines(records / "requests.jsonl")) == before and time.monotonic() < deadline:
            time.sleep(0.1)
        # Its first words come.
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=LIMIT)
        assert len(lines(records / "requests.jsonl")) > before, f"nothing was asked: {said}"
        # The engine does not go on for nobody.
        assert within(30, lambda: any(e["finish_reason"] == "abort" for e in lines(records / "ends.jsonl")[ended:]))


@pytest.mark.parametrize("agent", AGENTS, ids=short)
def test_an_agent_takes_its_turns(
    agent: Agent, url: str, homes: Path, records: Path, outcomes: dict[str, dict[str, str]]
) -> None:
    if shutil.which(agent.program, path=PATH) is None:
        pytest.skip(f"`make test-clients` could not install {agent.program}")
    session = Session(agent, homes / short(agent), url)
    outcome: dict[str, str] = {}
    for turn in TURNS:
        try:
            turn.steps(agent, session.home)
        except KeyError:
            continue
        if (turn.name == "compact" and agent.compact is None) or (turn.name == "resumed" and not agent.resumes):
            continue
        outcome[turn.name] = take(session, turn, records)
    outcomes[agent.name] = outcome
    assert set(outcome.values()) == {"✓"}, outcome


def take(session: Session, turn: Turn, records: Path) -> str:
    """Take a turn; how it ended."""
    agent = session.agent
    ended = len(lines(records / "ends.jsonl"))
    prompt = f"[turn:{short(agent)}-{turn.name}] {turn.prompt}"
    command = agent.command(prompt, turn is not TURNS[0], turn.model)
    if turn.name == "compact":
        assert agent.compact is not None
        command = [command[0], *agent.compact, *command[1:-1], agent.compact_prompt or prompt]
        session.write(agent.compact_files)
    if turn.is_interrupted:
        session.interrupt(command, records)
        return "✓"
    try:
        said = session.run(command)
    except AssertionError as error:
        return str(error)[-500:]
    finally:
        session.write(agent.files)
    is_asked = turn.name != "compact" or not agent.compact_prompt
    if turn.said not in said and agent.finish is None and is_asked:
        return f"said {said[-500:]!r}"
    if not turn.holds(session.home):
        return f"left {sorted(path.name for path in session.home.iterdir())}"
    if refused := [end for end in lines(records / "ends.jsonl")[ended:] if end["status"] != 200]:
        return f"was answered {refused}"
    return "✓"
