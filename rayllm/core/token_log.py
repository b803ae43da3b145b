"""The tokens of a streamed reply as an engine generates them, from which another engine can continue the stream."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Scope

_EXTENSION = "rayllm.token_log"


@dataclass(frozen=True)
class TokenGroup:
    """What an engine generated in one output.

    Args:
        token_ids: the tokens.
        finish_reason: "stop" or "length" if the reply ends with them, else "".
        stop_token: the token that ended the reply, if a token did.
    """

    token_ids: tuple[int, ...]
    finish_reason: str = ""
    stop_token: int | None = None


class TokenLog(ABC):
    """The log of one reply. A server offers a log to the application if it can have another engine continue the reply.

    Attributes:
        seed: what the ids in the reply are made of.
        created: when the request came, in seconds since the epoch.
        earlier: the tokens that an earlier engine has generated; this engine repeats them first.
        engine_is_lost: whether the engine has died; the application sets it.
    """

    seed: str
    created: float
    earlier: list[TokenGroup]
    engine_is_lost: bool = False

    @abstractmethod
    def open(self, is_continuable: bool) -> None:
        """Begin to log tokens. A reply of several sequences cannot be continued.

        Args:
            is_continuable: whether an engine can continue from the tokens of this request.
        """

    @abstractmethod
    def append(self, group: TokenGroup) -> None:
        """Log an output of the engine, before anything of the output is written."""

    @abstractmethod
    def next_number(self) -> int:
        """0, 1, 2, … in every engine: what the ids in the reply differ by."""

    @property
    @abstractmethod
    def is_continuable(self) -> bool:
        """Whether another engine can continue the reply."""

    @property
    @abstractmethod
    def continues_elsewhere(self) -> bool:
        """Whether another replica finishes the reply and reports its usage."""

    def add_to(self, scope: Scope) -> None:
        """Offer this log to the application."""
        scope["extensions"] = {**scope.get("extensions", {}), _EXTENSION: self}

    @staticmethod
    def in_scope(scope: Scope) -> "TokenLog | None":
        """The log that the server offers; None if nobody could continue the reply."""
        log: TokenLog | None = scope.get("extensions", {}).get(_EXTENSION)
        return log


def tokens_of(groups: Sequence[TokenGroup]) -> list[int]:
    """The tokens of several groups, in order."""
    return [token for group in groups for token in group.token_ids]
