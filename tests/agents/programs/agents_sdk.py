"""An agent on OpenAI's Agents SDK: python agents_sdk.py responses|chat MODEL new|resumed PROMPT.

Its session is in session.db.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

api, name, mode, prompt = sys.argv[1:]
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=os.environ["BASE_URL"] + "/v1", api_key="none", max_retries=0)
model = (OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel)(model=name, openai_client=client)


@function_tool
def write(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text)
    return "Written."


@function_tool
def run(command: str) -> str:
    """Run a command."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}exit code {done.returncode}"


@function_tool
def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@function_tool
def edit(path: str, old: str, new: str) -> str:
    """Replace a text in a file."""
    Path(path).write_text(Path(path).read_text().replace(old, new))
    return "Edited."


tools = [write, run, read, edit]
helper = Agent(name="Helper", instructions="You help.", model=model, tools=tools)
delegate = helper.as_tool("delegate", "Have a helper do something")
agent = Agent(name="Worker", instructions="You work in a folder.", model=model, tools=[*tools, delegate])


async def main() -> None:
    """Take one turn, and print what is said."""
    content: list[Any] = [{"type": "input_text", "text": prompt}]
    if "image.png" in prompt:
        data = base64.b64encode(Path("image.png").read_bytes()).decode()
        content.append({"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "auto"})
    asked: Any = [{"role": "user", "content": content}]
    result = Runner.run_streamed(agent, asked, session=SQLiteSession("session", "session.db"))
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            print(event.data.delta, end="", flush=True)


if mode == "new":
    Path("session.db").unlink(missing_ok=True)
asyncio.run(main())
