"""The turns that each agent takes: what the person asks, what the model says, and what must then be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.agents import EYES, MODEL, OTHER_MODEL, Agent

Step = str | list[dict[str, Any]]
IMAGE = "image.png"
"""A file in each agent's home."""
# More than an agent waits for before it is interrupted.
LONG = " ".join(f"word{number}" for number in range(4000))


@dataclass(frozen=True)
class Turn:
    """One turn of a session."""

    name: str
    title: str
    """In the table."""
    steps: Callable[[Agent, Path], list[Step]]
    """What the model says, one after the other, to an agent that works in a folder.

    Raises:
        KeyError: the agent has no such tool.
    """
    said: str
    """What the agent prints."""
    holds: Callable[[Path], bool] = lambda _folder: True
    """What is true of the folder at the end."""
    model: str = MODEL
    is_interrupted: bool = False
    prompt: str = "Do it."


def _tool(agent: Agent, name: str, *arguments: Any) -> Step:
    call = agent.tools[name](*arguments)
    return call if isinstance(call, str) else [call]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _written(agent: Agent, folder: Path) -> list[Step]:
    step = _tool(agent, "write", str(folder / "hello.py"), "print('hello')\n")
    return [step] if isinstance(step, str) else [step, _tool(agent, "run", "python3 hello.py"), "It prints hello."]


def _read_and_edited(agent: Agent, folder: Path) -> list[Step]:
    path = str(folder / "hello.py")
    edit = _tool(agent, "edit", path, "print('hello')", "print('bonjour')")
    return [edit] if isinstance(edit, str) else [_tool(agent, "read", path), edit, "It is edited."]


def _delegated(agent: Agent, _folder: Path) -> list[Step]:
    waits: list[Step] = [[agent.tools["await"]()]] if "await" in agent.tools else []
    return [[agent.tools["delegate"]("[turn:inner] Look around.")], *waits, "The helper has looked."]


def _looked(agent: Agent, folder: Path) -> list[Step]:
    # The mark of an image in the prompt.
    seen = "I see an ⟨<(image)>⟩."
    return [seen] if agent.attaches else [[agent.tools["look"](str(folder / IMAGE))], seen]


TURNS = [
    Turn("write", "a file is written, then run", _written, "hello", lambda at: "hello" in _text(at / "hello.py")),
    Turn(
        "parallel",
        "two tools at once",
        lambda agent, at: [
            [agent.tools["read"](str(at / "hello.py")), agent.tools["run"]("touch beside")],
            "Both are done.",
        ],
        "Both are done.",
        lambda at: (at / "beside").exists(),
    ),
    Turn(
        "fail",
        "a tool that fails",
        lambda agent, _at: [[agent.tools["run"]("ls nowhere; exit 3")], "It failed."],
        "It failed.",
    ),
    Turn("edit", "a file is edited", _read_and_edited, "", lambda at: "bonjour" in _text(at / "hello.py")),
    Turn("interrupted", "an interrupted answer", lambda _agent, _at: [LONG], "", is_interrupted=True),
    Turn("resumed", "the session goes on", lambda _agent, _at: ["I am back."], "I am back."),
    Turn(
        "delegate",
        "a sub-agent",
        _delegated,
        "The helper has looked.",
    ),
    Turn("compact", "the session is summarized", lambda _agent, _at: ["It was summarized."], "It was summarized."),
    Turn(
        "other-model",
        "another model",
        lambda agent, _at: [[agent.tools["run"]("touch other")], "Arrr."],
        "Arrr.",
        lambda at: (at / "other").exists(),
        model=OTHER_MODEL,
    ),
    Turn(
        "look",
        "an image",
        _looked,
        "I see an image.",
        model=EYES,
        # The libraries' programs attach a file that the prompt names.
        prompt=f"Look at {IMAGE}.",
    ),
]
OTHERWISE = [
    # What agents ask for when they summarize.
    {"pattern": "create a detailed summary|CHECKPOINT|[Ss]ummar", "step": "We wrote hello.py."},
    {"pattern": "task-notification", "step": "The helper has looked."},
    {"pattern": "[Tt]itle", "step": "Our work"},
    {"pattern": "Continue if you have next steps", "step": "Nothing is left."},
]
