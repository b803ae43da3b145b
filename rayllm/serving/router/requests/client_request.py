"""A client's request and what the router knows of the sender."""

from starlette.requests import Request
from starlette.types import Send

from rayllm.access import caller_of
from rayllm.core.headers import LONGEST_REQUEST_ID, REQUEST_ID
from rayllm.core.logs import printable
from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.record import RequestRecord


class ClientRequest:
    """A client's request: its record for telemetry, its caller, its class, and its exchange on the wire."""

    def __init__(self, request: Request, path: str, send: Send) -> None:
        self.request, self.path = request, path
        # A proxy may let longer ids through.
        self.record = RequestRecord(path, printable(request.headers.get(REQUEST_ID, ""), LONGEST_REQUEST_ID))
        self.caller = caller_of(request.scope)
        self.priority = self.caller.priority
        self.record.key, self.record.labels = self.caller.name, self.caller.labels
        self.exchange = Exchange(request, path, send, self.record)
