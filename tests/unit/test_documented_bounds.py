"""Numbers in docs/api.md are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayllm.core.json_body import MAX_CONTAINERS, MAX_PLAIN_BYTES, MAX_VALUES
from rayllm.core.json_body import MAX_DEPTH as MAX_LEVELS
from rayllm.engine.middleware.request_limits import MAX_FIELDS, MAX_MESSAGES, MAX_PARTS, MAX_TEXTS, MAX_TOOLS
from rayllm.engine.structured_output.limits import (
    MAX_CHARACTERS,
    MAX_CHOICES,
    MAX_DEPTH,
    MAX_ENUM,
    MAX_NODES,
    MAX_PATTERN,
    MAX_PROPERTIES,
)
from rayllm.engine.structured_output.sandbox_process import CPU_S, MEMORY_BYTES

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.mark.parametrize(
    "said",
    [
        f"a schema or a list of choices of {MAX_CHARACTERS['json']} characters,",
        f"characters, a grammar of {MAX_CHARACTERS['grammar']},",
        f"a regular expression of {MAX_CHARACTERS['regex']};",
        f"in a schema {MAX_DEPTH} levels, {MAX_NODES} parts, {MAX_ENUM} enum values, {MAX_PROPERTIES} properties",
        f"properties in one object and patterns of {MAX_PATTERN} characters;",
        f"; {MAX_CHOICES} choices;",
        f"levels | {MAX_VALUES:,}; {MAX_CONTAINERS:,}; {MAX_LEVELS} |",
        f"neither text nor white space | {MAX_PLAIN_BYTES >> 20} MiB |",
        f"fields of a request | {MAX_FIELDS:,} |",
        f"content parts together | {MAX_MESSAGES:,}; {MAX_PARTS:,} |",
        f"`tools` | {MAX_TOOLS:,} |",
        f"and their like | {MAX_TEXTS:,} |",
        f"stopped after {CPU_S} s of CPU or {MEMORY_BYTES / (1 << 30):g} GiB of memory",
    ],
)
def test_the_page_names_the_bounds_that_hold(said: str) -> None:
    assert said in " ".join(PAGE.read_text().split())


def test_what_shares_a_number_in_the_page_shares_it_in_the_code() -> None:
    assert MAX_CHARACTERS["json"] == MAX_CHARACTERS["structural_tag"] == MAX_CHARACTERS["choice"]
