"""The client commands against a real service: what it lists, says, and stops saying when nobody listens any more."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest
from click.testing import CliRunner, Result

from rayllm.cli.commands import chat, models, query
from tests.compatibility.cases import TOOL
from tests.integration.service import Service
from tests.integration.test_leaving import within

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."


def run(command: Any, service: Service, *arguments: str, stdin: str = "") -> Result:
    result = CliRunner(env={"RAYLLM_URL": service.url}).invoke(command.command, list(arguments), input=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_models_aliases_and_adapters_are_listed(service: Service, behind_proxy: bool) -> None:
    url = service.proxy_url if behind_proxy else service.url
    cards = {card["id"]: card for card in json.loads(run(models, service, "--json", "--url", f"{url}/v1").stdout)}
    assert (cards["rayllm-demo"]["kind"], cards["rayllm-demo"]["context"]) == ("model", 1024)
    assert cards["rayllm-demo:pirate"]["kind"] == "adapter of rayllm-demo"
    assert cards["gpt-demo"]["kind"] == "alias of rayllm-demo"


def test_a_question_is_answered(service: Service) -> None:
    result = run(query, service, FRANCE, "--temperature", "0", "--stats")
    assert (result.stdout, result.stderr.splitlines()[0]) == (f"{PARIS}\n", "model: rayllm-demo")
    assert "8 tokens" in result.stderr


def test_a_conversation_goes_on_with_an_adapter(service: Service) -> None:
    lines = f"{FRANCE}\nWhat about Germany?\n/model rayllm-demo:pirate\n/clear\n{FRANCE}\n"
    first, second, third = run(chat, service, "--temperature", "0", stdin=lines).stdout.splitlines()
    assert (first, second) == (PARIS, "The capital of Germany is Berlin.")
    assert "matey" in third


def test_a_tool_is_called_and_its_result_heard(service: Service, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([TOOL]))
    lines = "What's the temperature in Paris?\n22.0\n"
    tool_call, answer = run(chat, service, "--temperature", "0", "--tools", str(tools), stdin=lines).stdout.splitlines()
    assert tool_call.startswith('→ get_current_temperature({"location": "Paris, France"')
    assert "22" in answer


def test_ctrl_c_stops_the_answer_and_the_engines_work(service: Service) -> None:
    # The first time takes seconds, in which the story would end.
    assert service.unfinished() == 0
    variables: Any = {**os.environ, "RAYLLM_URL": service.url, "TERM": "xterm"}
    arguments = ["-m", "rayllm", "chat", "--model", "rayllm-demo", "--temperature", "0", "--max-tokens", "900"]
    terminal = pexpect.spawn(sys.executable, arguments, env=variables, encoding="utf-8", timeout=60)
    terminal.expect("> ")
    is_stopped = False
    while not is_stopped:
        terminal.sendline("Tell me a story.")
        terminal.expect_exact("Tell me a story.\r\n")
        terminal.expect("[a-z]+ [a-z]+ ")
        terminal.sendintr()
        # The story may have ended before the signal came.
        is_stopped = terminal.expect_exact(["(stopped)", "exit.\r\n> "]) == 0
    assert within(60, lambda: service.unfinished() == 0)
    terminal.sendline("/clear")
    terminal.sendline(FRANCE)
    terminal.expect_exact("Paris.")
    terminal.expect("> ")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
