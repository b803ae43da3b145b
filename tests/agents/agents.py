"""How each coding agent is set up, started and continued, and what its tools are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Call = dict[str, Any]
MODEL = "rayllm-demo"
OTHER_MODEL = "rayllm-demo:pirate"
EYES = "rayllm-eyes"
"""A model that takes images."""
CONTEXT = 65_536
"""Tokens of the model's context, as the agents are told."""


def call(name: str, **arguments: Any) -> Call:
    """A call of an agent's tool."""
    return {"name": name, "arguments": arguments}


@dataclass(frozen=True)
class Agent:
    """A coding agent."""

    name: str
    program: str
    command: Callable[[str, bool, str], list[str]]
    """The command of a turn: its prompt, whether it continues the last session, and its model."""
    tools: Mapping[str, Callable[..., Call]]
    """Its call for each of `write`, `run`, `read`, `edit`, `delegate` and `look` that it has, paths being absolute.

    `await` is the call, if any, that waits for a sub-agent.
    """
    files: Mapping[str, str] = field(default_factory=dict)
    """Its settings by path in its home, which is also where it works. `ADDRESS` stands for the service's address."""
    environment: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    """A command before the first turn."""
    attaches: bool = False
    """Whether it attaches images that a prompt names."""
    finish: Call | None = None
    """The call that ends a turn, where a text does not."""
    resumes: bool = True
    """Whether it can go on with a session without a terminal."""
    compact: tuple[str, ...] | None = None
    """Options with which it summarizes its session in a turn; None where none do."""
    compact_prompt: str = ""
    """What has it do so instead."""
    compact_files: Mapping[str, str] = field(default_factory=dict)
    """Settings for that turn."""


def _claude(prompt: str, resumed: bool, model: str) -> list[str]:
    options = ["--print", "--permission-mode", "bypassPermissions", "--model", model]
    return ["claude", *options, *(["--continue"] if resumed else []), prompt]


CLAUDE_CODE = Agent(
    name="Claude Code",
    program="claude",
    command=_claude,
    tools={
        "write": lambda path, text: call("Write", file_path=path, content=text),
        "run": lambda command: call("Bash", command=command, description="Run it"),
        "read": lambda path: call("Read", file_path=path),
        "edit": lambda path, old, new: call("Edit", file_path=path, old_string=old, new_string=new),
        "delegate": lambda prompt: call("Agent", description="Look", prompt=prompt, subagent_type="general-purpose"),
        "look": lambda path: call("Read", file_path=path),
    },
    environment={
        "ANTHROPIC_BASE_URL": "ADDRESS",
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Its leave to run without questions as root.
        "IS_SANDBOX": "1",
    },
    compact=(),
    compact_prompt="/compact",
)


def _codex(prompt: str, resumed: bool, model: str) -> list[str]:
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--model", model]
    return ["codex", "exec", *(["resume", "--last"] if resumed else []), *options, prompt]


def _patch(path: str, old: str, new: str) -> Call:
    name = path.rpartition("/")[2]
    patch = f"*** Begin Patch\n*** Update File: {name}\n@@\n-{old}\n+{new}\n*** End Patch"
    return call("exec_command", cmd=f"apply_patch <<'PATCH'\n{patch}\nPATCH\n")


CODEX = Agent(
    name="Codex",
    program="codex",
    command=_codex,
    tools={
        "write": lambda path, text: call("exec_command", cmd=f"cat > {path} <<'TEXT'\n{text}TEXT"),
        "run": lambda command: call("exec_command", cmd=command),
        "read": lambda path: call("exec_command", cmd=f"cat {path}"),
        "edit": _patch,
        # As vLLM writes names in namespaces.
        "delegate": lambda prompt: call("multi_agent_v1__spawn_agent", message=prompt),
        "await": lambda: call("multi_agent_v1__wait_agent", targets=[r'⟨"agent_id": ?"([^"]+)"⟩']),
        "look": lambda path: call("view_image", path=path),
    },
    files={
        ".codex/config.toml": f"""\
model = "{MODEL}"
model_provider = "rayllm"

[model_providers.rayllm]
name = "RayLLM"
base_url = "ADDRESS/v1"
wire_api = "responses"
""",
    },
    compact=("--config", "model_auto_compact_token_limit=1000"),
)


def _opencode(prompt: str, resumed: bool, model: str) -> list[str]:
    return ["opencode", "run", "--auto", "--model", f"rayllm/{model}", *(["--continue"] if resumed else []), prompt]


def _opencodes_settings(context: int) -> str:
    limit = {"limit": {"context": context, "output": 4096}}
    sees = {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    models = {MODEL: limit, OTHER_MODEL: limit, EYES: limit | sees}
    options = {"baseURL": "ADDRESS/v1", "apiKey": "none"}
    return json.dumps(
        {"provider": {"rayllm": {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}}}
    )


OPENCODE = Agent(
    name="opencode",
    program="opencode",
    command=_opencode,
    tools={
        "write": lambda path, text: call("write", filePath=path, content=text),
        "run": lambda command: call("bash", command=command, description="Run it"),
        "read": lambda path: call("read", filePath=path),
        "edit": lambda path, old, new: call("edit", filePath=path, oldString=old, newString=new),
        "delegate": lambda prompt: call("task", description="Look", prompt=prompt, subagent_type="general"),
        "look": lambda path: call("read", filePath=path),
    },
    files={"opencode.json": _opencodes_settings(CONTEXT)},
    compact=(),
    compact_files={"opencode.json": _opencodes_settings(18_500)},
)


def _continue(prompt: str, resumed: bool, model: str) -> list[str]:
    config = "other.yaml" if model == OTHER_MODEL else "config.yaml"
    return ["cn", "--config", config, "--print", "--auto", *(["--resume"] if resumed else []), prompt]


def _continues_settings(model: str) -> str:
    return f"""\
name: RayLLM
version: 0.0.1
schema: v1
models:
  - name: demo
    provider: openai
    model: {model}
    apiBase: ADDRESS/v1
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
"""


CONTINUE = Agent(
    name="Continue",
    program="cn",
    command=_continue,
    tools={
        "write": lambda path, text: call("Write", filepath=path, content=text),
        "run": lambda command: call("Bash", command=command),
        "read": lambda path: call("Read", filepath=path),
        "edit": lambda path, old, new: call("Edit", file_path=path, old_string=old, new_string=new),
    },
    files={"config.yaml": _continues_settings(MODEL), "other.yaml": _continues_settings(OTHER_MODEL)},
)


def _cline(prompt: str, _resumed: bool, model: str) -> list[str]:
    return ["cline", "--provider", "openai-compatible", "--model", model, prompt]


CLINE = Agent(
    name="Cline",
    program="cline",
    setup=("cline", "auth", "--provider", "openai", "--apikey", "none", "--modelid", MODEL, "--baseurl", "ADDRESS/v1"),
    command=_cline,
    tools={
        "write": lambda path, text: call("editor", path=path, new_text=text),
        "run": lambda command: call("run_commands", commands=[command]),
        "read": lambda path: call("read_files", files=[{"path": path}]),
        "edit": lambda path, old, new: call("editor", path=path, old_text=old, new_text=new),
        "delegate": lambda prompt: call("spawn_agent", systemPrompt="You help.", task=prompt),
    },
    resumes=False,
)


def _aider(prompt: str, resumed: bool, model: str) -> list[str]:
    options = ["--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings", "--no-stream"]
    options = ["--model", f"openai/{model}", "--edit-format", "diff", *options[:-1]]
    return ["aider", *options, *(["--restore-chat-history"] if resumed else []), "--message", prompt]


def _blocks(path: str, old: str, new: str) -> str:
    return f"{path.rpartition('/')[2]}\n```python\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n```\n"


AIDER = Agent(
    name="aider",
    program="aider",
    command=_aider,
    tools={
        "write": lambda path, text: _blocks(path, "", text),
        "edit": lambda path, old, new: _blocks(path, f"{old}\n", f"{new}\n"),
    },
    environment={"OPENAI_API_BASE": "ADDRESS/v1", "OPENAI_API_KEY": "none", "AIDER_ANALYTICS": "false"},
    compact=("--max-chat-history-tokens", "10"),
)


def _mini(prompt: str, _resumed: bool, model: str) -> list[str]:
    options = ["--yolo", "--exit-immediately", "--cost-limit", "0", "--config", "mini.yaml"]
    options += ["--config", "model.model_kwargs.api_base=ADDRESS/v1", "--config", "model.cost_tracking=ignore_errors"]
    return ["mini", *options, "--model", f"openai/{model}", "--task", prompt]


MINI = Agent(
    name="mini-swe-agent",
    program="mini",
    command=_mini,
    tools={
        "write": lambda path, text: call("bash", command=f"cat > {path} <<'TEXT'\n{text}TEXT"),
        "run": lambda command: call("bash", command=command),
        "read": lambda path: call("bash", command=f"cat {path}"),
        "edit": lambda path, old, new: call("bash", command=f'sed -i "s/{old}/{new}/" {path}'),
    },
    resumes=False,
    finish=call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    environment={"OPENAI_API_KEY": "none", "MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1"},
)


def _program(*command: str) -> Callable[[str, bool, str], list[str]]:
    """An agent of a few lines on a library, in `programs`."""
    return lambda prompt, resumed, model: [*command, model, "resumed" if resumed else "new", prompt]


_PROGRAMS_TOOLS = {
    "write": lambda path, text: call("write", path=path, text=text),
    "run": lambda command: call("run", command=command),
    "read": lambda path: call("read", path=path),
    "edit": lambda path, old, new: call("edit", path=path, old=old, new=new),
}
_ADDRESS = {"BASE_URL": "ADDRESS"}
LIBRARIES = [
    Agent(
        name=f"AI SDK, {title}",
        program="node",
        command=_program("node", "ai_sdk.mjs", provider),
        tools=_PROGRAMS_TOOLS,
        attaches=True,
        environment=_ADDRESS,
    )
    for title, provider in [("chat", "chat"), ("responses", "responses"), ("messages", "messages")]
] + [
    Agent(
        name=f"Agents SDK, {title}",
        program="python",
        command=_program("python", "agents_sdk.py", title),
        tools=_PROGRAMS_TOOLS | {"delegate": lambda prompt: call("delegate", input=prompt)},
        attaches=True,
        environment=_ADDRESS,
    )
    for title in ("responses", "chat")
]
AGENTS = [CLAUDE_CODE, CODEX, OPENCODE, CONTINUE, CLINE, AIDER, MINI, *LIBRARIES]
