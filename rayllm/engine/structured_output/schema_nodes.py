"""The parts of a JSON schema: subschemas, references, and keywords that a value may violate.

Keywords are those of drafts 4 to 2020-12 (https://json-schema.org/specification). Names within `properties` and values
within `enum`, `const`, `default` and `examples` are not schemas.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""Keywords that apply other schemas to the same value."""

ASSERTIONS = frozenset(
    {*IN_PLACE, "const", "dependencies", "dependentRequired", "enum", "format", "pattern", "type", "$dynamicRef"}
    | {"minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains"}
    | {"minItems", "maxItems", "uniqueItems", "properties", "patternProperties", "additionalProperties"}
    | {"unevaluatedProperties", "propertyNames", "required", "minProperties", "maxProperties", "$recursiveRef"}
)
"""Keywords that a value may violate. All others are annotations, as are formats that are not among FORMATS."""
_TIMES = {"date", "date-time", "duration", "time"}
_HOSTS = {"email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6"}
_ADDRESSES = {"iri", "iri-reference", "json-pointer", "relative-json-pointer", "uri", "uri-reference", "uri-template"}
FORMATS = frozenset(_TIMES | _HOSTS | _ADDRESSES | {"regex", "uuid"})
"""Formats with a meaning in JSON Schema (https://json-schema.org/draft/2020-12/json-schema-validation#section-7.3)."""

_SWITCHED_OFF = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords that hold schemas by names."""
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
_SCHEMAS |= {"additionalItems", "unevaluatedItems", "unevaluatedProperties"}
_PATTERN_PARTS = re.compile(r"\\.?|&&|--|~~|.", re.DOTALL)


def assertions(node: dict[str, Any]) -> set[str]:
    """The keywords of a schema that a value may violate."""
    return {name for name in node if name in ASSERTIONS and not is_switched_off(name, node[name])}


def is_switched_off(keyword: str, value: Any) -> bool:
    """Whether a keyword with this value allows every value."""
    if keyword == "format":
        return value not in FORMATS if isinstance(value, str) else True
    return keyword in _SWITCHED_OFF and value is _SWITCHED_OFF[keyword]


def subschemas(node: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schemas directly within a schema, with the path to each schema."""
    for keyword in node:
        value = node[keyword]
        if keyword in MAPS and isinstance(value, dict):
            yield from (((keyword, name), schema) for name, schema in value.items())
        elif (keyword in _LISTS or keyword == "items") and isinstance(value, list):
            yield from (((keyword, str(index)), schema) for index, schema in enumerate(value))
        elif keyword in _SCHEMAS:
            yield (keyword,), value


def map_subschemas(node: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of a schema with `change` applied to its subschemas, and without keywords that are switched off."""
    return {name: _map(name, value, change) for name, value in node.items() if not is_switched_off(name, value)}


def _map(keyword: str, value: Any, change: Callable[[Any], Any]) -> Any:
    if keyword in MAPS and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    if (keyword in _LISTS or keyword == "items") and isinstance(value, list):
        return [change(schema) for schema in value]
    return change(value) if keyword in _SCHEMAS else value


def resolve(root: Any, reference: Any) -> Any:
    """The schema that a reference within the document (`#/$defs/node`) names; None if the schema does not exist."""
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    node = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name[:6]) < len(node):
            node = node[int(name[:6])]
        else:
            return None
    return node


def place(path: tuple[str, ...]) -> str:
    """A path within a schema, for messages."""
    return f"`{'.'.join(path)}`"[:200] if path else "its top level"


def pattern_parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """The escapes, operators and characters of a regular expression; the flag marks parts of a character class."""
    in_class = False
    for part in _PATTERN_PARTS.findall(pattern):
        yield part, in_class
        in_class = part != "]" if in_class else part == "["
