"""Error of a request to a server."""

from __future__ import annotations

from rayllm.errors import RayLLMError


class ServerError(RayLLMError):
    """A request to a server failed.

    Args:
        message: one line, and perhaps a second one with a hint.
        reason: short description of the kind of failure.
        status_code: the HTTP status; 0 if there was no response.
        param: the request's field at fault, if the server names it.
    """

    def __init__(self, message: str, reason: str, status_code: int = 0, param: str | None = None) -> None:
        super().__init__(message, param)
        self.args = (message, reason, status_code, param)
        self.reason = reason
        self.status_code = status_code

    def with_hint(self, hint: str) -> ServerError:
        """A copy with another hint."""
        line = self.message.partition("\n")[0]
        return ServerError(f"{line}\nhint: {hint}", self.reason, self.status_code, self.param)
