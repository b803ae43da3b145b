"""Pages of lists."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.errors import RequestError
from rayllm.serving.batch_api.objects import FILE, created_at, is_id, new_id
from rayllm.serving.batch_api.page import Cursor, Page

IDS = [f"{FILE}{number:032x}" for number in range(300)]


def read(cursor: Cursor, ids: list[str] = IDS, missing: set[str] | None = None) -> Page[str]:
    return Page.read(ids, cursor, lambda name: None if name in (missing or ()) else name)


def test_pages_together_are_the_whole_list() -> None:
    for order, whole in (("asc", IDS), ("desc", IDS[::-1])):
        seen: list[str] = []
        while True:
            page = read(Cursor(7, seen[-1] if seen else "", order))  # type: ignore[arg-type]
            seen += page.entries
            assert len(page.entries) == 7 or not page.has_more
            if not page.has_more:
                break
        assert seen == whole


def test_what_is_gone_leaves_no_gap() -> None:
    page = read(Cursor(3, "", "asc"), missing=set(IDS[:100]))
    assert (page.entries, page.has_more) == (IDS[100:103], True)


def test_a_cursor_may_be_gone() -> None:
    assert read(Cursor(2, IDS[5], "asc"), [*IDS[:5], *IDS[6:]]).entries == IDS[6:8]


def test_the_last_page_says_so() -> None:
    assert read(Cursor(300)).has_more is False
    assert read(Cursor(299)).has_more is True
    assert read(Cursor(10, IDS[0])).public(lambda name: {"id": name}) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "ten"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"limit": "0" * 5000 + "1"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"after": "../../etc/passwd"}, "after"),
        ({"after": "batch_" + "0" * 32}, "after"),
        ({"order": "up"}, "order"),
    ],
)
def test_a_wrong_query_is_refused(query: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        Cursor.from_query(query, FILE, 20, 100)
    assert caught.value.param == param


def test_ids_sort_by_age_and_differ() -> None:
    ids = [new_id(FILE) for _ in range(100)]
    assert len(set(ids)) == 100
    assert [name[:17] for name in ids] == sorted(name[:17] for name in ids)
    assert all(is_id(FILE, name) for name in ids)
    assert abs(created_at(ids[0]) - created_at(ids[-1])) < 60


NO_IDS = (
    "",
    "file-",
    "file-" + "0" * 31,
    "file-" + "0" * 33,
    "file-" + "0" * 31 + "\n",
    "file-" + "0" * 32 + "\n",
    "file-" + "A" * 32,
    "file-" + "٠" * 32,
    "batch_" + "0" * 32,
    "file-../../../../../../../../etc/pa",
)


@pytest.mark.parametrize("text", NO_IDS)
def test_anything_else_is_no_id(text: str) -> None:
    assert not is_id(FILE, text)
