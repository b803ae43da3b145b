"""docs/reliability.md names tests that exist, and bounds that are the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rayllm.config import RouterConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]*test_\w+\.py)(?:::(\w+))?`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("file", "test"), NAMED, ids=["::".join(filter(None, named)) for named in NAMED])
def test_each_named_test_exists(file: str, test: str) -> None:
    found = [path for path in (ROOT / "tests").rglob(Path(file).name) if path.as_posix().endswith(f"/{file}")]
    assert found
    assert not test or any(f"def {test}(" in path.read_text() for path in found)


def test_each_class_of_advisories_names_its_test() -> None:
    table = PAGE.split("<!-- advisories -->\n")[1].split("<!-- /advisories -->")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines()[2:]]
    assert len(rows) > 30
    for advisory, _, tests in rows:
        assert re.search(r"`[\w/]*test_\w+\.py", tests), advisory


def test_the_bounds_are_the_defaults() -> None:
    router = RouterConfig()
    assert f"headers larger than {router.max_header_bytes // 1024} KiB" in PAGE
    assert f"longer than {router.header_timeout_s:g} s for the headers" in PAGE
    assert f"longer than {router.body_timeout_s:g} s for the body" in PAGE
    assert f"unread for {router.send_timeout_s:g} s" in PAGE
    assert f"more than {router.max_pending_body_bytes >> 30} GiB together" in PAGE
