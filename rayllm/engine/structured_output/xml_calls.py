"""Spells out the arguments of tool calls in XML formats for xgrammar.

xgrammar's own XML formats allow white space around values, which becomes part of texts: `" celsius"` is not in an
`enum` with `celsius`. `tests/vllm/test_forced_calls.py` samples calls and reads them with vLLM's parsers.
"""

import re
from collections.abc import Iterator
from typing import Any

from rayllm.engine.structured_output.schema_nodes import assertions, resolve

# xgrammar's style → the text before and after a value, as in the models' chat templates.
_FRAMES = {
    "qwen_xml": ("<parameter={}>", "</parameter>"),
    "minimax_xml": ('<parameter name="{}">', "</parameter>\n"),
    "glm_xml": ("<arg_key>{}</arg_key><arg_value>", "</arg_value>"),
}
# Qwen's frame, if the call begins with a line of its own; MiMo's has no lines.
_QWEN_LINES = ("<parameter={}>\n", "\n</parameter>\n")
# Styles whose calls xgrammar itself constrains exactly.
_EXACT = ("deepseek_xml", "deepseek_v4_1_xml")
_NAME = re.compile(r'[^<>"\s]+')
_TEXT = {"minLength", "maxLength", "enum", "const", "type"}
_DEFINITIONS = ("$defs", "definitions")


def spell_out(holder: dict[str, Any], schema: Any, begin: str) -> str | None:
    """Replace an XML format in a structural tag, of the type `json_schema`, by the sequence of the call's arguments.

    Args:
        holder: the format; changed in place.
        schema: the schema of the arguments.
        begin: the text before the format.

    Returns:
        A phrase for a part of the schema that cannot be enforced in this format; None if all can.
    """
    style = str(holder.get("style", "json"))
    if style == "json" or isinstance(schema, bool):
        return None
    if style not in (*_FRAMES, *_EXACT):
        return f"describes calls in the form `{style[:40]}`"
    schema = resolve(schema, schema["$ref"]) if "$ref" in schema else schema
    properties = schema.get("properties", {})
    for name in properties:
        if not _NAME.fullmatch(name):
            return f"has a name that is invalid in XML calls at `properties.{name[:80]}`"
    if style in _EXACT:
        return None
    if not assertions(schema) <= {"type", "properties", "required", "additionalProperties"}:
        return "is not a plain object"
    before, after = _QWEN_LINES if style == "qwen_xml" and begin.endswith("\n") else _FRAMES[style]
    arguments = []
    for name, value in properties.items():
        if (content := _content(schema, value)) is None:
            return f"has a reference, or texts beside other types or with a pattern, at `properties.{name[:80]}`"
        argument = {"type": "tag", "begin": before.format(name), "content": content, "end": after}
        is_required = name in schema.get("required", [])
        arguments.append(argument if is_required else {"type": "optional", "content": argument})
    holder.clear()
    holder |= {"type": "sequence", "elements": arguments} if arguments else {"type": "const_string", "value": ""}
    return None


def _content(root: dict[str, Any], schema: Any) -> dict[str, Any] | None:
    """The format of one value; None for texts that might not be enforced."""
    alternatives = list(_alternatives(root, schema))
    types = {alternative.get("type") for alternative in alternatives}
    if None in types or (types != {"string"} and _refers(schema)):
        return None
    if "string" not in types:
        definitions = {name: root[name] for name in _DEFINITIONS if name in root}
        return {"type": "json_schema", "json_schema": {**definitions, **schema}}
    # vLLM reads `null` as null if the schema allows it.
    texts = [alternative for alternative in alternatives if alternative["type"] == "string"]
    return _text(texts[0]) if len(texts) == 1 and types <= {"string", "null"} else None


def _refers(schema: Any) -> bool:
    """Whether a schema, or an alternative, is a reference: vLLM's parsers take the referenced value for a text."""
    branches = schema.get("anyOf", schema.get("oneOf", ()))
    return "$ref" in schema or any(isinstance(branch, dict) and "$ref" in branch for branch in branches)


def _alternatives(root: dict[str, Any], schema: Any, depth: int = 2) -> Iterator[dict[str, Any]]:
    """The alternatives of a schema, with a single type each; an alternative without a type is empty."""
    if not isinstance(schema, dict) or depth == 0:
        yield {}
    elif "$ref" in schema:
        yield from _alternatives(root, resolve(root, schema["$ref"]), depth - 1)
    elif branches := schema.get("anyOf", schema.get("oneOf")):
        for branch in branches:
            yield from _alternatives(root, branch, depth - 1)
    elif isinstance(schema.get("type"), list):
        yield from ({**schema, "type": name} for name in schema["type"])
    else:
        yield schema


def _text(schema: dict[str, Any]) -> dict[str, Any] | None:
    if not assertions(schema) <= _TEXT:
        return None
    if values := [schema["const"]] if "const" in schema else schema.get("enum"):
        # `null` is a separate alternative.
        texts = [value for value in values if isinstance(value, str)]
        if not texts or any("<" in text or not text for text in texts):
            return None
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}
    if schema.get("maxLength") == 0:
        return None
    if "minLength" in schema or "maxLength" in schema:
        return {"type": "regex", "pattern": _of_length(schema.get("minLength", 0), schema.get("maxLength"))}
    return {"type": "any_text", "excludes": ["</"]}


def _of_length(least: int, most: int | None) -> str:
    """A regular expression for texts of a length that do not end an argument, nor begin or end with white space."""
    if most is not None and most < 2:
        return r"[^<\s]"
    between = f"{{{max(0, least - 2)},{'' if most is None else most - 2}}}"
    return rf"[^<\s][^<]{between}[^<\s]" if least > 1 else rf"[^<\s]([^<]{between}[^<\s])?"
