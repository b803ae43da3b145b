"""What goes wrong between a client and a server."""

from __future__ import annotations

from rayllm.errors import RayLLMError


class ServerError(RayLLMError):
    """A server did not give what it was asked for.

    Args:
        message: one line, and where it helps a second one with a hint.
        reason: what happened in a few words, the same for all failures of one kind.
        answered: the HTTP status; 0 where none came.
        param: the request's field at fault, where the server names it.
    """

    def __init__(self, message: str, reason: str, answered: int = 0, param: str | None = None) -> None:
        super().__init__(message, param)
        self.args = (message, reason, answered, param)
        self.reason = reason
        self.answered = answered

    def with_hint(self, hint: str) -> ServerError:
        """The same with another hint."""
        line = self.message.partition("\n")[0]
        return ServerError(f"{line}\nhint: {hint}", self.reason, self.answered, self.param)
