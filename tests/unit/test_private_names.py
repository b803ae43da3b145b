"""The check for private names of libraries."""

from __future__ import annotations

from tests.private_names import missing_names


class Example:
    attribute = 1

    def __init__(self) -> None:
        self.value = 2

    def set_later(self) -> None:
        self.later = 3


class Derived(Example):
    pass


def test_names_are_found_on_modules_classes_and_instances() -> None:
    names = ("Example", "Example.attribute", "Example.value", "Example.later", "Derived.value", "Example.__init__")
    assert missing_names({__name__: names}) == []


def test_missing_names_are_reported_with_their_module() -> None:
    assert missing_names({"json": ("dumps", "gone"), "no_such_module": ("name",)}) == [
        "json.gone",
        "no_such_module.name",
    ]
    assert missing_names({__name__: ("Example.gone", "Example.gone.too")}) == [
        f"{__name__}.Example.gone",
        f"{__name__}.Example.gone.too",
    ]
