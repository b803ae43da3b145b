"""JSON schemas within structural tags, which vLLM also makes of tools, and within grammars in Lark."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from rayllm.engine.structured_output.schema_nodes import ASSERTIONS
from rayllm.engine.structured_output.xgrammar_schema import find_unenforced, rewrite_for_xgrammar
from rayllm.engine.structured_output.xml_calls import spell_out

# Characters of white space in a row within JSON. Without a limit, small models write it up to the limit of tokens.
_MAX_WHITESPACE = 1
_HOLDERS = ("json_schema", "qwen_xml_parameter")
_IN_LARK = "%json"


def schemas_in(tag: Any) -> list[Any]:
    """The JSON schemas in a structural tag."""
    return [holder[key] for holder, key, _ in _holders(tag)]


def enforce_tag(tag: Any) -> str | None:
    """Rewrite, in place, a structural tag's JSON schemas for xgrammar, and limit white space.

    Source: https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html

    Returns:
        A phrase for a part that xgrammar does not enforce; None if xgrammar enforces all. `find_malformed` must find
        nothing in the schemas.
    """
    for holder, key, begin in list(_holders(tag)):
        if fault := find_unenforced(holder[key]) or spell_out(holder, holder[key], begin):
            return fault
    for holder, key, _ in _holders(tag):
        holder[key] = rewrite_for_xgrammar(holder[key])
        if key == "json_schema" and holder.get("max_whitespace_cnt") is None:
            holder["max_whitespace_cnt"] = _MAX_WHITESPACE
    return None


def _holders(tag: Any) -> Iterator[tuple[dict[str, Any], str, str]]:
    """The objects in a structural tag with a schema, together with the schema's key and the text before the object."""
    stack: list[tuple[Any, str]] = [(tag, "")]
    while stack:
        node, begin = stack.pop()
        if isinstance(node, list):
            stack += [(item, begin) for item in node]
        elif isinstance(node, dict) and node.get("type") in _HOLDERS and "json_schema" in node:
            yield node, "json_schema", begin
        elif isinstance(node, dict):
            # The older form of structural tags.
            for item in node["structures"] if isinstance(node.get("structures"), list) else ():
                if isinstance(item, dict) and "schema" in item:
                    yield item, "schema", ""
            rest = [value for name, value in node.items() if name != "structures"]
            stack += [(value, str(node.get("begin", ""))) for value in rest]


def map_lark_schemas(grammar: str, change: Callable[[Any], Any]) -> str:
    """A grammar in Lark with `change` applied to each of its JSON schemas.

    Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
    """
    start, *parts = grammar.split(_IN_LARK)
    for part in parts:
        text = part.lstrip()
        try:
            schema, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            # The compiler reports what is no JSON.
            start += _IN_LARK + part
        else:
            start += f"{_IN_LARK} {json.dumps(change(schema))}{text[end:]}"
    return start


def same_parameters(schema: Any, other: Any) -> bool:
    """Whether two schemas of parameters are equal, apart from vLLM's changes: null defaults and a `type`."""
    return bool(_comparable(schema) == _comparable(other))


def _comparable(schema: Any) -> Any:
    stripped = _without_nulls(schema)
    return {"type": "object", **stripped} if isinstance(stripped, dict) else stripped


def _without_nulls(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {name: _without_nulls(value) for name, value in node.items() if value is not None or name in ASSERTIONS}
