"""Finds malformed JSON schemas, and keywords that compilers interpret otherwise than JSON Schema."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from rayllm.engine.structured_output.schema_nodes import MAPS, pattern_parts, place, subschemas

TYPES = frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])
# Numbers beyond are not exact where JSON's numbers are floats.
_MAX_EXACT = 2**53
_DRAFT_3 = ("disallow", "divisibleBy", "extends")
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07", "2019-09")


def find_malformed(schema: Any) -> str | None:
    """A phrase for the first keyword of a schema with a value of a wrong type; None for a well-formed schema."""
    draft = str(schema.get("$schema")) if isinstance(schema, dict) else ""
    is_old = any(name in draft for name in _OLD_DRAFTS)
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            return f"has something other than a schema at {place(path)}"
        if (fault := next(_faults(node), None)) is not None:
            return f"{fault} at {place(path)}"
        if is_old and "prefixItems" in node:
            return f"has `prefixItems`, which its `$schema` lacks, at {place(path)}"
        pending += [((*path, *step), child) for step, child in subschemas(node)]
    return None


def _faults(node: dict[str, Any]) -> Iterator[str]:
    for name, is_right in _SHAPES.items():
        if name in node and not is_right(node[name]):
            yield f"has an invalid `{name}`"
    for name in _DRAFT_3:
        if name in node:
            yield f"has `{name}` of draft 3"
    if isinstance(pattern := node.get("pattern"), str) and _nests_classes(pattern):
        yield "has a `pattern` with a character class whose `[`, `&&`, `--` or `~~` is not escaped"
    if isinstance(factor := node.get("multipleOf"), float) and Fraction(str(factor)) != Fraction(factor):
        yield f"has a `multipleOf` of {factor}, which binary floating point cannot represent"
    if node.get("minProperties", 0) > 1 and not _is_closed(node):
        yield "has `minProperties` above 1 beside unnamed properties"


def _is_closed(node: dict[str, Any]) -> bool:
    is_named = node.get("properties") and "patternProperties" not in node
    return bool(is_named) and node.get("additionalProperties", False) is False


def _nests_classes(pattern: str) -> bool:
    """Whether a character class contains operators of Rust's regular expressions."""
    return any(in_class and part in ("[", "&&", "--", "~~") for part, in_class in pattern_parts(pattern))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_EXACT


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_EXACT


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _are_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_COUNTS = [f"{bound}{of}" for bound in ("min", "max") for of in ("Length", "Items", "Properties", "Contains")]
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SHAPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(MAPS, _is(dict)),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum"), lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(("$ref", "pattern"), _is(str)),
    "prefixItems": _is(list),
    "required": _are_texts,
    "type": _are_types,
    "uniqueItems": _is(bool),
}
