"""Finds the parts of a JSON schema that xgrammar does not enforce.

xgrammar drops keywords without an error, `properties` beside `anyOf` for example. So only tested keywords are admitted;
`tests/vllm/test_schema_corpus.py` samples answers and validates them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from rayllm.engine.structured_output.disjoint import exclusive_branches, types_of
from rayllm.engine.structured_output.schema_nodes import (
    FORMATS,
    assertions,
    map_subschemas,
    pattern_parts,
    place,
    resolve,
    subschemas,
)

_BY_TYPE = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "boolean": set(),
    "null": set(),
}
_KNOWN = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type"}.union(*_BY_TYPE.values())
# The FORMATS of the oldest supported xgrammar.
_FORMATS = FORMATS - {"idn-email", "idn-hostname", "iri", "iri-reference", "regex"}
_LENGTHS = ("minLength", "maxLength")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_ESCAPES = tuple("dDwWsSnrtfvux")
# xgrammar's limit for repetitions in a regular expression.
_MAX_LENGTH = 128
# Keywords beside which xgrammar ignores all others.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")


def find_unenforced(schema: Any) -> str | None:
    """A phrase for the first part of a schema that xgrammar does not enforce; None if xgrammar enforces all.

    The schema is within the limits of `check_schema`, and well-formed (`find_malformed`).
    """
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    seen, targets = set(), []
    while pending:
        path, node = pending.pop()
        if node is False:
            return f"allows no value at {place(path)}"
        if not isinstance(node, dict):
            continue
        seen.add(id(node))
        if "$ref" in node:
            targets.append((node["$ref"], resolve(schema, node["$ref"])))
        if path and "$id" in node:
            return f"has `$id` at {place(path)}"
        if (fault := next(_faults(schema, node), None)) is not None:
            return f"{fault} at {place(path)}"
        # `additionalProperties: false` is no schema.
        pending += [((*path, *step), child) for step, child in subschemas(node) if node[step[0]] is not False]
    # A target that is not among the schemas was not checked.
    odd = (reference for reference, target in targets if id(target) not in seen or {"%", "~"} & set(reference))
    return next((f"has a `$ref` to `{reference[:80]}`" for reference in odd), None)


def rewrite_for_xgrammar(schema: Any) -> Any:
    """The equal schema for xgrammar of a schema in which `find_unenforced` finds no fault.

    Limits of a text's length become patterns, since xgrammar would allow control characters; arrays get `items`, and
    `oneOf` becomes `anyOf`.
    """
    return _rewrite(schema, schema)


def _rewrite(root: Any, node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    rewritten = map_subschemas(node, partial(_rewrite, root))
    if "oneOf" in rewritten:
        rewritten["anyOf"] = exclusive_branches(root, rewritten.pop("oneOf"))
    if any(name in node for name in _LENGTHS):
        least, most = rewritten.pop("minLength", 0), rewritten.pop("maxLength", "")
        rewritten["pattern"] = rf"^[\s\S]{{{least},{most}}}$"
    if "minItems" in node and "items" not in node:
        rewritten["items"] = {}
    return rewritten


def _faults(root: Any, node: dict[str, Any]) -> Iterator[str]:
    """Phrases for the unenforced parts of a schema, without its subschemas."""
    present = assertions(node)
    for name in sorted(present - _KNOWN):
        yield f"has `{name}`"
    for name in _ALONE:
        others = present - {name} - ({"type"} if name in ("const", "enum") else set())
        if name in present and others:
            yield f"has `{name}` beside `{min(others)}`"
    if "$ref" in node and resolve(root, node["$ref"]) is None:
        yield f"has a `$ref` to `{node['$ref'][:80]}`, which does not exist,"
    if len(node.get("allOf", [{}])) != 1:
        yield "has an `allOf` of several schemas"
    if "oneOf" in node and exclusive_branches(root, node["oneOf"]) is None:
        yield "has a `oneOf` whose schemas may fit the same value (use `anyOf`)"
    yield from _type_faults(node, present)
    yield from _string_faults(node, present)
    yield from _value_faults(node, present)
    required, properties = node.get("required", []), node.get("properties", {})
    if missing := [name for name in required if name not in properties]:
        yield f"requires `{str(missing[0])[:80]}`, which `properties` does not name,"


def _type_faults(node: dict[str, Any], present: set[str]) -> Iterator[str]:
    declared = node.get("type")
    types = [declared] if isinstance(declared, str) else declared
    if types is None:
        types = [name for name in ("array", "object") if present & _BY_TYPE[name]]
    allowed = set().union(*(_BY_TYPE.get(name, set()) for name in types))
    for name in sorted(present - {*_ALONE, "type"} - allowed):
        yield f"has `{name}` without its `type`"


def _string_faults(node: dict[str, Any], present: set[str]) -> Iterator[str]:
    texts = sorted(present & {"pattern", "format", *_LENGTHS})
    if len(texts) > 1 and not set(texts) <= set(_LENGTHS):
        yield f"has `{texts[-1]}` beside `{texts[0]}`"
    if any(node.get(name, 0) > _MAX_LENGTH for name in _LENGTHS):
        yield f"has `minLength` or `maxLength` above {_MAX_LENGTH}"
    if "pattern" in present and not _is_plain(node["pattern"]):
        yield "has a `pattern` with anchors or escapes that are not plain"
    if isinstance(node.get("items"), list):
        yield "has a list of `items`"
    if "format" in present and node["format"] not in _FORMATS:
        yield f"has the format `{node['format']}`"


def _is_plain(pattern: str) -> bool:
    """Whether a regular expression has anchors only at its ends, and only common escapes."""
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
    return not any(
        (part[0] == "\\" and part[1:].isalnum() and part[1] not in _ESCAPES) or (part in ("^", "$") and not in_class)
        for part, in_class in pattern_parts(inner)
    )


def _value_faults(node: dict[str, Any], present: set[str]) -> Iterator[str]:
    if "type" in node and present & {"const", "enum"} and not types_of({**node, "type": None}) <= types_of(node):
        yield "has constants that are not of its `type`"
    if node.get("type") == "integer" and any(isinstance(node.get(name), float) for name in _BOUNDS):
        yield "has bounds that are no integers"
