"""The pages of the documentation: their order, links, and blocks of code.

Blocks that start a service are run by tests/integration/test_quickstart.py; these tests check that all others could be.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from click.testing import CliRunner

from rayllm.access.key import Key
from rayllm.cli.main import cli
from rayllm.config import load_app
from rayllm.config.load import generation_from, model_from
from rayllm.config.vllm_versions import PINNED
from rayllm.core.endpoints import MODERATIONS, RESPONSES
from rayllm.serving.batch_api import service
from rayllm.serving.router import application, deployment
from rayllm.serving.router.ui.pages import PATH as UI
from scripts.documentation import DOCS, ROOT, Block, blocks, headings, llms_txt, sections, slug, summary, targets

PAGES = sorted(DOCS.rglob("*.md"))
LINKED = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
LINKED += [ROOT / name / "README.md" for name in ("deploy", "examples", "models")]
OPENAPI = json.loads(application.DESCRIPTION_FILE.read_text())
SHELLS = ("sh", "bash", "console")
# Programs of others in the pages; what they do is theirs.
PROGRAMS = {
    *("base64", "cat", "cd", "cp", "docker", "echo", "export", "git", "helm", "kind", "kubectl", "litellm", "ls"),
    *("mkdir", "ollama", "pip", "ray", "rm", "sed"),
    *("aider", "claude", "cn", "codex", "guidellm", "n8n", "opencode"),
}
# Modules that only `make test-clients` installs, which runs the blocks with them.
CLIENTS = {
    *("agents", "haystack", "instructor", "langchain_anthropic", "langchain_core", "langchain_openai", "litellm"),
    *("llama_index", "pydantic_ai"),
}
# Top-level keys that tell files of other programs: Prometheus's, LiteLLM's, Continue's, guidellm's.
FOREIGN = {"scrape_configs", "model_list", "schema", "spec"}


class Code(NamedTuple):
    """A block of a page."""

    page: Path
    block: Block

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.block.line}"


def in_language(*languages: str) -> list[Code]:
    return [Code(page, block) for page in LINKED for block in blocks(page.read_text()) if block.language in languages]


def each(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("code", in_language(*languages), ids=str)


each_page = pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))


def test_the_navigation_has_every_page_once() -> None:
    listed = [page for _, pages in sections() for page in pages]

    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_each_client_says_what_it_prints() -> None:
    listed = blocks((DOCS / "clients.md").read_text())
    run = [index for index, block in enumerate(listed) if block.language in ("python", "sh")]

    assert {listed[index].language for index in run} == {"python", "sh"}
    # `make test-clients` runs a block that a text follows, and compares what it prints with that.
    assert [
        listed[index].line for index in run if [block.language for block in listed[index + 1 : index + 2]] != ["text"]
    ] == []


def test_llms_txt_is_current() -> None:
    assert (DOCS / "llms.txt").read_text() == llms_txt()


@each_page
def test_a_page_begins_with_its_title_and_what_it_is_about(page: Path) -> None:
    text = page.read_text()

    assert re.match(r"# \S", text)
    assert len(re.findall(r"^# ", text, re.MULTILINE)) >= 1
    assert summary(text)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    lost = [target for target in targets(page.read_text()) if not leads(page, target)]

    assert lost == []


def leads(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return target.startswith(("https://", "http://", "mailto:"))
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    if not anchor or not found.is_file():
        return found.exists() and not anchor
    return anchor in anchors(found)


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(slug(heading) for heading in headings(page.read_text()))


@each("python")
def test_python_compiles_and_its_imports_resolve(code: Code) -> None:
    tree = ast.parse(code.block.code)

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(exists(alias.name) for alias in node.names if alias.name not in CLIENTS)
        elif isinstance(node, ast.ImportFrom):
            assert node.module
            if node.module.partition(".")[0] in CLIENTS:
                continue
            assert exists(node.module)
            assert [alias.name for alias in node.names if not has(node.module, alias.name)] == []


def exists(module: str) -> bool:
    """Whether there is a module, found without importing what is above it."""
    top, *below = module.split(".")
    spec = find_spec(top)
    if spec is None or not below:
        return spec is not None
    path = Path(*below)
    folders = [Path(folder) / path for folder in spec.submodule_search_locations or ()]
    return any(folder.is_dir() or folder.with_suffix(".py").is_file() for folder in folders)


def has(module: str, name: str) -> bool:
    """Whether a module has a name; of others than RayLLM's, whether its source mentions it."""
    if module.partition(".")[0] == "rayllm":
        return hasattr(importlib.import_module(module), name)
    top, *below = module.split(".")
    spec = find_spec(top)
    assert spec
    path = Path((spec.submodule_search_locations or [""])[0], *below)
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return exists(f"{module}.{name}") or not source.is_file() or name in source.read_text()


@each("json")
def test_json_is_json(code: Code) -> None:
    json.loads(code.block.code)


@each("yaml")
def test_yaml_is_what_our_loaders_take(code: Code, tmp_path: Path) -> None:
    loaded = yaml.safe_load(textwrap.dedent(code.block.code))
    if FOREIGN & loaded.keys():
        return
    if applications := loaded.get("applications"):
        for one in applications:
            if one["import_path"] == "ray.serve.llm:build_openai_app":
                check_conversion(loaded, code)
            else:
                assert one["import_path"] == "rayllm:app"
                check_args(one["args"])
    elif loaded.keys() & {"router", "llm_configs"}:
        check_args(loaded)
    elif loaded.keys() == {"salt", "keys"}:
        # Hashes are cut off in the page.
        assert all(key.keys() <= Key.model_fields.keys() for key in loaded["keys"])
    elif loaded.keys() & {"bucket_uri", "model_source"} and "model_loading_config" not in loaded:
        check_model({"model_loading_config": loaded}, tmp_path)
    elif loaded.keys() <= {"prompt_format", "stopping_sequences", "generate_kwargs"}:
        (tmp_path / "rayllm.yaml").write_text(code.block.code)
        generation_from(tmp_path / "rayllm.yaml")
    else:
        check_model(loaded, tmp_path)


def check_conversion(theirs: dict[str, Any], code: Code) -> None:
    """The page's next block is what `rayllm convert` makes of this one."""
    following = [block for block in blocks(code.page.read_text()) if block.line > code.block.line]
    ours = yaml.safe_load(next(block.code for block in following if block.language == "yaml"))

    with CliRunner().isolated_filesystem():
        Path("serve.yaml").write_text(yaml.safe_dump(theirs, sort_keys=False))
        converted = CliRunner().invoke(cli, ["convert", "serve.yaml"])

    assert converted.exit_code == 0, converted.output
    assert yaml.safe_load(converted.stdout) == ours


def check_args(args: dict[str, Any]) -> None:
    """Load `args`, with the demo in place of models that the pages only name."""
    entries = args.get("llm_configs", [])
    there = [entry for entry in entries if isinstance(entry, dict) or (ROOT / entry).exists()]
    router = args.get("router", {})
    named = [guard["model"] for guard in router.get("guards", ())]
    models: list[Any] = there or ["models/rayllm-demo.yaml"]
    models += [as_model(name, guard_task(router, name)) for name in named]
    load_app({**args, "llm_configs": models}, ROOT)


def guard_task(router: dict[str, Any], name: str) -> str:
    [guard] = [one for one in router["guards"] if one["model"] == name]
    return "classify" if guard["verdict"] == "labels" else "generate"


def as_model(name: str, task: str) -> dict[str, Any]:
    source = str(ROOT / "models" / "rayllm-demo" / "weights")
    return {"model_loading_config": {"model_id": name, "model_source": source}, "task": task}


def check_model(loaded: dict[str, Any], folder: Path) -> None:
    """Load a model's file, with an id where the page shows only other keys, and with the files that it names."""
    for name in relative_paths(loaded):
        path = folder / name if Path(name).suffix else folder / name / "my-backend" / "backend.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    identity = {"model_id": "m"} | loaded.get("model_loading_config", {})
    model_from({**loaded, "model_loading_config": identity}, "page", (folder, ROOT))


def relative_paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from relative_paths(one)
    elif isinstance(value, str) and value.startswith("./"):
        yield value


@each(*SHELLS)
def test_commands_are_there(code: Code) -> None:
    for command in commands(code.block):
        check_command(command)


def commands(block: Block) -> Iterator[list[str]]:
    """The simple commands of a block, without redirections."""
    text = block.code
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    text = re.sub(r"\\\n\s*(?:#.*\n\s*)?", " ", text)
    text = re.sub(r"\$\((.*?)\)", lambda found: "; " + found[1] + " ;", text)
    lexer = shlex.shlex(text.replace("\n", "\n;"), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;"):
            yield from [words] if words else []
            words = []
        else:
            words.append(word)
    yield from [words] if words else []


def check_command(words: list[str]) -> None:
    words = words[: next((index for index, word in enumerate(words) if set(word) <= set("<>")), len(words))]
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if not words:
        return
    program, *arguments = words
    program = program.removeprefix(".venv/bin/")
    if program == "rayllm":
        check_options(cli, arguments)
    elif program == "make":
        goals = [one for one in arguments if "=" not in one]
        assert [goal for goal in goals if not re.search(rf"^{goal}:", MAKEFILE, re.MULTILINE)] == []
    elif program == "python":
        check_python(arguments)
    elif program == "serve":
        assert arguments[0] in ("run", "deploy")
        assert (ROOT / arguments[-1]).exists()
    elif program == "vllm":
        check_vllm(arguments)
    elif program == "curl":
        check_curl(arguments)
    else:
        assert program in PROGRAMS


MAKEFILE = (ROOT / "Makefile").read_text()


def check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        assert exists(arguments[1])
    elif arguments[0].startswith(("scripts/", "examples/")):
        assert (ROOT / arguments[0]).is_file()


def check_vllm(arguments: list[str]) -> None:
    """Look options of `vllm serve` up among the names of the locked version."""
    names = vllm_names()
    options = [one[2:].replace("-", "_") for one in arguments if one.startswith("--")]
    assert arguments[0] == "serve"
    assert [one for one in options if one not in {*names["engine"], *names["server"]}] == []


def vllm_names() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"rayllm/config/data/vllm/{PINNED}.json").read_text())
    return found


def check_options(command: click.Command, arguments: list[str]) -> None:
    """Parse as click does, but look at no file; "…" stands for what the page leaves out."""
    ctx = click.Context(command, info_name="rayllm")
    while isinstance(command, click.Group):
        parser = command.make_parser(ctx)
        _, arguments, _ = parser.parse_args(arguments)
        found = command.get_command(ctx, arguments[0])
        assert found, f"rayllm has no command {arguments[0]}"
        command, arguments = found, arguments[1:]
        ctx = click.Context(command, ctx, arguments[0] if arguments else None)
    values, rest, _ = command.make_parser(ctx).parse_args([one for one in arguments if one != "…"])
    assert rest == []
    for parameter in command.params:
        value = values.get(parameter.name)
        if isinstance(value, str) and isinstance(parameter.type, click.Choice | click.types.IntParamType):
            parameter.type.convert(value, parameter, ctx)
        if isinstance(parameter, click.Argument) and parameter.required and "…" not in arguments:
            assert value, f"{ctx.command_path} needs {parameter.human_readable_name}"


def check_curl(arguments: list[str]) -> None:
    [url] = [one for one in arguments if re.match(r"(http://)?(127\.0\.0\.1|localhost|\$URL)", one)]
    path = "/" + url.removeprefix("http://").partition("?")[0].partition("/")[2]
    bodies = [arguments[index + 1] for index, one in enumerate(arguments) if one in ("-d", "--data")]
    described = operations(path)
    assert described, f"{path} is not in {application.DESCRIPTION_FILE.name}"
    assert ("post" if bodies else "get") in described
    for body in bodies:
        fields = json.loads(body)
        content = described["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert any(fields.keys() <= properties.keys() for properties in known_fields(content))


def operations(path: str) -> dict[str, Any]:
    for template, found in OPENAPI["paths"].items():
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
            return found
    return {}


def known_fields(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in schema:
        schema = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for one in schema.get("anyOf", ()):
        yield from known_fields(one)
    if "properties" in schema:
        yield schema["properties"]


def test_the_openapi_description_has_every_route_of_the_router() -> None:
    routes = {(endpoint.path, "post") for endpoint in application.ENDPOINTS} | {(MODERATIONS, "post"), (UI, "get")}
    routes |= {route for module in (application, deployment, service) for route in routes_in(module)}
    # Nothing is stored, which all of these say.
    answered = {route for route in routes if not route[0].startswith(f"{RESPONSES}/")}

    assert answered == {(path, method) for path, found in OPENAPI["paths"].items() for method in found}


def routes_in(module: Any) -> Iterator[tuple[str, str]]:
    """The paths and methods that a module gives to `Route` and `add_api_route`, or collects in a mapping for it."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(("Route", "add_api_route")):
            methods = next((ast.literal_eval(one.value) for one in node.keywords if one.arg == "methods"), ["GET"])
            yield from ((path, method.lower()) for path in path_in(node.args[0], module) for method in methods)
        elif isinstance(node, ast.Dict):
            yield from ((path, "get") for key in node.keys if key for path in path_in(key, module))


def path_in(expression: ast.expr, module: Any) -> Iterator[str]:
    try:
        value = eval(compile(ast.Expression(expression), module.__file__, "eval"), vars(module))
    except (NameError, AttributeError):
        return  # a variable of a loop, over paths that are looked at elsewhere
    if isinstance(value, str) and value.startswith("/"):
        yield value.replace(":path}", "}")
