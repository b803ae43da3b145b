"""Rewrites JSON schemas for guidance, which refuses schemas with unenforced keywords.

The rewriting removes only what no value violates: formats without a meaning in JSON Schema, keywords that are switched
off, and `oneOf` that means the same as `anyOf`. It adds only what excludes answers: an object has only the properties
that its schema names, unless the schema mentions others.
"""

from typing import Any

from rayllm.engine.structured_output.disjoint import exclusive_branches
from rayllm.engine.structured_output.schema_nodes import IN_PLACE, assertions, map_subschemas, resolve, subschemas

_OPTIONS = "x-guidance"
# After a comma and a colon, as most models write JSON. Small models generate unlimited white space up to their limit.
COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
FLEXIBLE = {"whitespace_flexible": True}


def separated_by(pattern: str) -> dict[str, Any]:
    """The options of guidance for white space that matches a regular expression, around commas and colons."""
    separators = {"item_separator": f"({pattern}),({pattern})", "key_separator": f"({pattern}):({pattern})"}
    return {"whitespace_flexible": False, **separators}


def rewrite_schema(schema: dict[str, Any], whitespace: dict[str, Any], closes_all: bool = False) -> dict[str, Any]:
    """The equal schema for guidance of a schema in which `find_malformed` finds nothing.

    Args:
        schema: the client's schema.
        whitespace: COMPACT, FLEXIBLE or `separated_by` a pattern.
        closes_all: as vLLM's `disable_additional_properties`, allow no unnamed properties in an object unless the
            object's own schema mentions them.
    """
    rewriter = _Rewriter(schema, closes_all)
    rewriter.find_merged(schema, True)
    # The client's own options could have guidance ignore keywords.
    return {**rewriter.rewrite(schema), _OPTIONS: whitespace}


class _Rewriter:
    def __init__(self, root: Any, closes_all: bool) -> None:
        self._root = root
        self._closes_all = closes_all
        # Schemas that apply to a value together with other schemas, whose properties must stay possible.
        self._merged: set[int] = set()
        self._seen: set[tuple[int, bool]] = set()

    def find_merged(self, root: Any, is_alone: bool) -> None:
        """Collect the schemas, also behind references in `root`, whose values other schemas apply to as well."""
        stack = [(root, is_alone)]
        while stack:
            node, is_alone = stack.pop()
            if not isinstance(node, dict) or (id(node), is_alone) in self._seen:
                continue
            self._seen.add((id(node), is_alone))
            if not is_alone:
                self._merged.add(id(node))
            parts = node.get("allOf")
            is_only = len(assertions(node) - {"type"}) == 1 and not (isinstance(parts, list) and len(parts) > 1)
            # Closed schemas of a `oneOf` would exclude each other where the client's do not.
            is_whole = is_only and ("oneOf" not in node or exclusive_branches(self._root, node["oneOf"]) is not None)
            is_plain = not any(name in node for name in IN_PLACE)
            for path, child in subschemas(node):
                if path[0] not in ("$defs", "definitions"):
                    stack.append((child, is_alone and (is_whole if path[0] in IN_PLACE else is_plain)))
            if "$ref" in node:
                stack.append((resolve(self._root, node["$ref"]), is_alone and is_only))

    def rewrite(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        rewritten = map_subschemas(node, self.rewrite)
        if "oneOf" in node and "anyOf" not in node:
            branches = exclusive_branches(self._root, rewritten["oneOf"])
            if branches is not None:
                rewritten["anyOf"] = branches
                del rewritten["oneOf"]
        if _names_all_properties(node) if id(node) not in self._merged else self._closes_all and _is_open(node):
            rewritten["additionalProperties"] = False
        return rewritten


def _is_open(node: dict[str, Any]) -> bool:
    return "additionalProperties" not in node and ("properties" in node or "patternProperties" in node)


def _names_all_properties(node: dict[str, Any]) -> bool:
    """Whether a schema names properties, requires no unnamed properties, and does not describe unnamed properties."""
    open_by = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", *IN_PLACE)
    if "properties" not in node or any(name in node for name in open_by):
        return False
    return all(name in node["properties"] for name in node.get("required", ()))
