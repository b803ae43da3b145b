"""Priority classes of requests."""

from enum import IntEnum
from typing import Literal, Self

PriorityName = Literal["interactive", "standard", "batch"]


class Priority(IntEnum):
    """The class of a request; a smaller number goes first."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2

    @classmethod
    def named(cls, name: str) -> Self:
        """The class with a name in lower case; raises KeyError for an unknown name."""
        return _BY_NAME[name]

    @property
    def label(self) -> str:
        """The name in lower case."""
        return self.name.lower()


_BY_NAME = {priority.label: priority for priority in Priority}
