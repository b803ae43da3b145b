"""JSON schemas that people have: of Kubernetes, AWS, clients of OpenAI and MCP, configuration, and agents' tools."""

from __future__ import annotations

import importlib
import inspect
import json
import random
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pydantic

_SITE = Path(pydantic.__file__).parents[1]
_KUBERNETES = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
# Only found: cfnlint takes a second to import.
_AWS = Path(str(find_spec("cfnlint").origin)).parent / "data" / "schemas" / "resources"  # type: ignore[union-attr]
_MODULES = ("openai.types.chat", "openai.types.responses", "openai.types", "mcp.types", "anthropic.types")
_FILES = ("jsonschema_specifications/schemas/*/*.json", "*/*schema*.json", "*/config/*schema*.json")
AGENT_TOOLS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("agent_tools.json").read_text())


def collections() -> dict[str, dict[str, Any]]:
    """The schemas by name, the same ones in each run with the same packages."""
    found = {f"agent/{name}": schema for name, schema in AGENT_TOOLS.items()}
    draw = random.Random(2020)
    found |= _of_kubernetes(draw, 60)
    for name, paths, most in (
        ("aws", sorted(_AWS.rglob("*.json")), 60),
        ("file", sorted({path for pattern in _FILES for path in _SITE.glob(pattern)}), 20),
    ):
        for path in draw.sample(paths, min(most, len(paths))):
            schema = json.loads(path.read_text())
            if isinstance(schema, dict):
                found[f"{name}/{path.stem}"] = schema
    models = sorted(_models())
    found |= {f"{module}.{name}": model.model_json_schema() for module, name, model in draw.sample(models, 60)}
    return found


def _of_kubernetes(draw: random.Random, most: int) -> dict[str, dict[str, Any]]:
    folder = max(_KUBERNETES.iterdir(), key=lambda path: path.name)
    text = (folder / "_definitions.json").read_text()
    definitions = json.loads(re.sub(r'"[^"#]*_definitions\.json#', '"#', text))["$defs"]
    found = {}
    for name in draw.sample(sorted(definitions), most):
        used, pending = {}, [name]
        while pending:
            if (title := pending.pop()) not in used:
                used[title] = definitions[title]
                pending += re.findall(r'"#/\$defs/([^"]+)"', json.dumps(used[title]))
        found[f"kubernetes/{name}"] = {"$ref": f"#/$defs/{name}", "$defs": used}
    return found


def _models() -> Iterator[tuple[str, str, type[pydantic.BaseModel]]]:
    for name in _MODULES:
        module = importlib.import_module(name)
        for title, model in inspect.getmembers(module, inspect.isclass):
            if issubclass(model, pydantic.BaseModel) and model.__module__.split(".")[0] == name.split(".")[0]:
                yield name, title, model
