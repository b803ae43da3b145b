"""docs/clients.md: each block is run with the client that it is for, against the demo, and prints what the page says.

`make test-clients` installs the clients beside ours, in `.venv-clients`, and runs this.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from scripts.documentation import Block, blocks
from tests.integration.service import DEMO, ROOT
from tests.integration.test_traces import running, wait_until_ready
from tests.servers.process import free_port

CLIENTS = Path(os.environ.get("CLIENTS", ROOT / ".venv-clients"))
needs_clients = pytest.mark.skipif(
    not (CLIENTS / "bin" / "python").exists(), reason="needs clients: `make test-clients`"
)
pytestmark = needs_clients
PAGE = (ROOT / "docs" / "clients.md").read_text()
DOCUMENTED_URL = "http://127.0.0.1:8000"
HOOK = Path(__file__).parent / "clients" / "shorten.py"
# Tokens. The instructions and tools of a coding agent take up to 23,000 of the demo's.
CONTEXT = 65_536
PATH = os.pathsep.join([str(CLIENTS / "bin"), str(CLIENTS / "node_modules" / ".bin"), os.environ["PATH"]])


class Example(NamedTuple):
    """A block of the page that runs, the files that it needs, and the text that it prints."""

    section: str
    files: list[Block]
    code: Block
    printed: str


def examples() -> list[Example]:
    """The page's blocks of code that a text follows."""
    found: list[Example] = []
    files: list[Block] = []
    listed = blocks(PAGE)
    for block, following in zip(listed, [*listed[1:], None], strict=True):
        if block.title:
            files.append(block)
        elif block.language in ("python", "sh") and following and following.language == "text":
            found.append(Example(_section(block), files, block, following.code))
            files = []
    return found


def _section(block: Block) -> str:
    above = "\n".join(PAGE.splitlines()[: block.line])
    headings: list[str] = re.findall(r"^#+ (.+)$", above, re.MULTILINE)
    return headings[-1]


LIBRARIES = [example for example in examples() if example.code.language == "python"]
COMMANDS = [example for example in examples() if example.code.language == "sh"]
NO_AGENTS = ("n8n", "guidellm")
AGENTS = [example for example in COMMANDS if example.section not in NO_AGENTS]
APPLICATIONS = [example for example in COMMANDS if example.section in NO_AGENTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service's files are, and what was asked."""
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The demo with a longer context, and a model of embeddings, as `rayllm run` serves them."""
    hook = shutil.copy(HOOK, folder)
    application = {"llm_configs": [long_demo(), embedder()], "router": {"hooks": [{"callable": f"{hook}:shorten"}]}}
    application = {"name": "rayllm", "route_prefix": "/", "import_path": "rayllm:app", "args": application}
    config, log, port = folder / "serve.yaml", folder / "log", free_port()
    config.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application]}))
    command = [sys.executable, "-m", "rayllm", "run", str(config), "--port", str(port)]
    with running(command, log) as process:
        wait_until_ready(process, log)
        yield f"http://127.0.0.1:{port}"


def long_demo() -> dict[str, Any]:
    """The demo with a context that takes what coding agents send; beyond 2,048 tokens it makes no sense of it."""
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    demo["model_loading_config"]["model_source"] = str(weights())
    demo["lora_config"]["dynamic_lora_loading_path"] = str(weights().parent / "adapters")
    demo["max_request_context_length"] = CONTEXT
    demo["engine_kwargs"]["hf_overrides"] = {"max_position_embeddings": CONTEXT}
    return demo


def embedder() -> dict[str, Any]:
    """The demo's weights as a model of embeddings."""
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    return {
        "model_loading_config": {"model_id": "rayllm-demo-embed", "model_source": str(weights())},
        "task": "embed",
        "max_request_context_length": 512,
        "engine_kwargs": {"max_num_seqs": 8},
        "runtime_env": demo["runtime_env"],
    }


def weights() -> Path:
    return DEMO.parent / "rayllm-demo" / "weights"


def run(example: Example, folder: Path, url: str) -> str:
    """Run a block in a folder that is also its home; what it printed."""
    (folder / "models").symlink_to(DEMO.parent)
    for file in example.files:
        path = folder / file.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.code.replace(DOCUMENTED_URL, url))
    code = example.code.code.replace(DOCUMENTED_URL, url)
    interpreter = ["python", "-c"] if example.code.language == "python" else ["bash", "-euc"]
    done = subprocess.run(
        [shutil.which(interpreter[0], path=PATH) or interpreter[0], interpreter[1], code],
        cwd=folder,
        # Nothing of the caller's: a key or an address in the environment would be used.
        env={"PATH": PATH, "HOME": str(folder), "LANG": "C.UTF-8", "TERM": "dumb"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("example", LIBRARIES, ids=lambda example: f"{example.section}:{example.code.line}")
def test_a_library_prints_what_the_page_says(example: Example, url: str, tmp_path: Path) -> None:
    assert run(example, tmp_path, url).strip() == example.printed.strip()


def skip_without_its_program(example: Example) -> None:
    program = example.code.code.splitlines()[-1].split()[0]
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"`make test-clients` could not install {program}")


@pytest.mark.parametrize("example", APPLICATIONS, ids=lambda example: example.section)
def test_an_application_is_answered(example: Example, url: str, tmp_path: Path) -> None:
    skip_without_its_program(example)
    assert example.printed.strip() in run(example, tmp_path, url)


@pytest.mark.parametrize("example", AGENTS, ids=lambda example: example.section)
def test_an_agent_is_answered(example: Example, url: str, folder: Path, tmp_path: Path) -> None:
    skip_without_its_program(example)
    kept = folder / "requests.jsonl"
    kept.unlink(missing_ok=True)
    assert example.printed.strip() in run(example, tmp_path, url)
    sent = [json.loads(line) for line in kept.read_text().splitlines()]
    assert sent
    for request in sent:
        body = request["body"]
        # Else the demo may go on to the end of its context.
        short = {"max_output_tokens" if "input" in body else "max_tokens": 256}
        reply = httpx.post(url + request["path"], json=body | short, headers={"x-as-sent": "1"}, timeout=300)
        assert reply.status_code == 200, reply.text
        assert "event: error" not in reply.text
        assert 'data: {"error"' not in reply.text
        assert "event: response.failed" not in reply.text
