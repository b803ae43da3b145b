"""The states and steps of an exchange."""

from enum import Enum


class State(Enum):
    """Where an exchange is. `STEPS` says which state may follow which."""

    NEW = "no replica has the request, and the client nothing of a reply"
    TAKEN = "a replica has the request, and the client nothing of a reply"
    BEGUN = "the client may have the beginning of a reply"
    DONE = "the client has the whole reply"
    BROKEN = "the reply has ended early, or the client has left; no other reply may follow"


STEPS = {
    (State.NEW, State.TAKEN): "The router sends the request to a replica.",
    (State.TAKEN, State.NEW): "The replica turns the request away, fails or dies: another replica may answer.",
    (State.NEW, State.BEGUN): "The router sends comments, because a stream waits for a replica.",
    (State.TAKEN, State.BEGUN): "The writer of the reply says so before the first byte: the replica after a handover, "
    "otherwise the router.",
    (State.BEGUN, State.BEGUN): "The router sends the request to a replica that begins or continues the stream.",
    (State.NEW, State.DONE): "The router answers with an error.",
    (State.TAKEN, State.DONE): "The router passes on the replica's error, or stops the replica and answers itself.",
    (State.BEGUN, State.DONE): "The writer has written the end of the reply.",
    (State.BEGUN, State.BROKEN): "The replica dies or fails, and no other replica can continue; or the client leaves.",
    (State.NEW, State.BROKEN): "The client leaves.",
    (State.TAKEN, State.BROKEN): "The client leaves.",
}
"""Who makes which step of an exchange, and when."""
