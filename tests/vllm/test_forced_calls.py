"""Forced and strict calls of tools through vLLM's own parsers: they fit the tools, or the request is refused."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.request import get_structured_output_key

from rayllm.config.vllm_versions import PINNED, current_series
from rayllm.core.errors import RequestError
from rayllm.engine.structured_output.gate import Options
from rayllm.engine.vllm.forced_calls import enforce_arguments
from tests.vllm.test_schema_corpus import Compilers
from tests.vllm.test_shipped_parsers import MODELS, ROOT, tokenizer

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 9},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "hours": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "kind": {"$ref": "#/$defs/kind"},
        "level": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]},
    },
    "$defs": {"kind": {"type": "string", "enum": ["a b", "c"]}},
    "required": ["city", "days", "place"],
}
FORCED: dict[str, Any] = {"required": "required", "named": {"type": "function", "function": {"name": "weather"}}}
# Whose format has no schema, so that their calls cannot be forced.
FREE = {"dots", "gemma4", "inkling", "k2_horizon", "kimi_k3", "minimax_m3", "muse_glimmer", "poolside_v1"}
SHIPPED = {model.tool_calling.parser for model in MODELS if model.tool_calling}


def parser_names() -> list[str]:
    """The parsers that can be made with the tokens of the shipped files' families."""
    made = []
    for name in sorted(ToolParserManager.list_registered()):
        try:
            ToolParserManager.get_tool_parser(name)(tokenizer(), [])
            ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True)(tokenizer(), [])  # type: ignore[misc]
        except (RuntimeError, ValueError, ImportError, TypeError):
            assert name not in SHIPPED, name
        else:
            made.append(name)
    return made


# Some parsers of earlier versions do not read all that these versions generate; of those, the shipped files' count.
NAMES = [name for name in parser_names() if current_series() == PINNED or name in SHIPPED - {"minimax_m3", "mistral"}]


@pytest.fixture(scope="module")
def compilers() -> Compilers:
    enforce_arguments()
    enforce_arguments()
    return Compilers(tokenizer())


def asked(choice: Any, **function: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, **function}}
    return {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": choice}


async def constraint_of(compilers: Compilers, name: str, body: dict[str, Any]) -> tuple[str, str] | None:
    """The constraint that the engine gets for a request to a model with a parser."""
    await compilers.gate.admit(body)
    request = ChatCompletionRequest(**body)
    before = [tool.function.strict for tool in request.tools or []]
    made = ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True)
    assert made is not None
    request = made(tokenizer(), request.tools).adjust_request(request)
    assert [tool.function.strict for tool in request.tools or []] == before
    if (structured := request.structured_outputs) is None:
        compilers.gate.refuse_unforced_calls()
        return None
    kind, text = get_structured_output_key(structured)
    return await compilers.gate.prepare(kind.name.lower(), text, Options())


def calls_in(name: str, body: dict[str, Any], kind: str, answer: str) -> list[tuple[str, Any]]:
    """The calls in an answer, as vLLM reads them."""
    if kind != "json":
        request = ChatCompletionRequest(**body)
        found = ToolParserManager.get_tool_parser(name)(tokenizer(), request.tools).extract_tool_calls(answer, request)
        return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]
    value = json.loads(answer)
    if isinstance(value, dict):
        return [("weather", value)]
    return [(call["name"], call.get("parameters", call.get("arguments"))) for call in value]


def check_calls(compilers: Compilers, name: str, body: dict[str, Any], constraint: tuple[str, str], least: int) -> None:
    kind, text = constraint
    done = 0
    for seed in range(8):
        grammar = compilers.backend.compile_grammar(StructuredOutputOptions[kind.upper()], text)
        tokens = compilers.sampler.sample(grammar, compilers.backend, seed, 400)
        if tokens is None:
            continue
        answer = tokenizer().decode(tokens)
        calls = calls_in(name, body, kind, answer)
        assert len(calls) >= least, answer
        for called, arguments in calls:
            assert called == "weather"
            jsonschema.validate(arguments, PARAMETERS)
        done += 1
    assert done >= 4


@pytest.mark.parametrize("strict", [None, False])
@pytest.mark.parametrize("choice", FORCED)
@pytest.mark.parametrize("name", NAMES)
def test_forced_calls_fit_their_tool(compilers: Compilers, name: str, choice: str, strict: bool | None) -> None:
    body = asked(FORCED[choice], strict=strict)
    if name == "mistral":
        # vLLM leaves definitions out of what it makes for tokenizers that are not Mistral's own.
        with pytest.raises(RequestError, match=r"Pointer '/\$defs/kind' does not exist"):
            asyncio.run(constraint_of(compilers, name, body))
        plain = {name: value for name, value in PARAMETERS["properties"].items() if name != "kind"}  # type: ignore[attr-defined]
        body = asked(FORCED[choice], strict=strict, parameters={**PARAMETERS, "properties": plain})
    if name in FREE:
        with pytest.raises(RequestError) as caught:
            asyncio.run(constraint_of(compilers, name, body))
        assert caught.value.param == "tool_choice"
        return
    constraint = asyncio.run(constraint_of(compilers, name, body))
    assert constraint is not None
    if name != "openai":  # which reads token ids of a vocabulary that has to be downloaded
        check_calls(compilers, name, body, constraint, least=1)


@pytest.mark.parametrize("name", NAMES)
def test_strict_calls_fit_their_tool(compilers: Compilers, name: str) -> None:
    body = asked("auto", strict=True)
    constraint = asyncio.run(constraint_of(compilers, name, body))
    if constraint is not None and name not in {"openai", *FREE}:
        check_calls(compilers, name, body, constraint, least=0)


@pytest.mark.parametrize("name", NAMES)
def test_other_calls_stay_as_vllm_has_them(compilers: Compilers, name: str) -> None:
    constraint = asyncio.run(constraint_of(compilers, name, asked("auto")))
    # vLLM constrains the form of all calls of some.
    assert constraint is None or name.startswith("glm")


def test_what_cannot_be_enforced_of_a_tool_is_named(compilers: Compilers) -> None:
    body = asked("required", parameters={"type": "object", "properties": {"a": {"not": {}}}})
    with pytest.raises(RequestError, match=r"in `tools` has `not` at `properties\.a`"):
        asyncio.run(constraint_of(compilers, "hermes", body))


def test_the_page_names_the_parsers_whose_calls_are_not_forced() -> None:
    page = (ROOT / "docs" / "tools.md").read_text()
    listed = re.search(r"Parsers whose format vLLM does not constrain \((.*?)\)", page, re.DOTALL)
    assert listed
    assert set(re.findall(r"`(\w+)`", listed[1])) == FREE
