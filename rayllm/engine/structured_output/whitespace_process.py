"""The subprocess that converts one JSON schema and one whitespace pattern to a regular expression.

It reads `{"schema", "pattern", "longest"}` from stdin and writes `{"regex"}` or `{"fault"}` to stdout.
"""

from __future__ import annotations

import json
import sys

from rayllm.engine.structured_output.process_limits import limit_process


def main() -> None:
    limit_process()
    print(json.dumps(convert(**json.load(sys.stdin))))


def convert(schema: str, pattern: str, longest: int) -> dict[str, str]:
    """The regular expression of at most `longest` characters, or a fault."""
    from outlines_core.json_schema import build_regex_from_schema

    try:
        regex = build_regex_from_schema(schema, pattern)
    except (ValueError, TypeError) as error:
        return {"fault": f"cannot be converted: {' '.join(str(error).split())[:500].rstrip('.')}"}
    if len(regex) > longest:
        return {"fault": f"becomes a regular expression longer than {longest} characters"}
    return {"regex": regex}


if __name__ == "__main__":
    main()
