"""Replies without a middleman: a router hands its client's connection to a replica on the same node.

The router reads the request and decides; the replica writes the reply straight into the client's socket, as if the
client had called it, and then says that it is done. No byte of the reply passes through the router, which goes on
listening for the client's farewell and for its next request.
"""

from rayllm.serving.handover.channel import Message
from rayllm.serving.handover.receiver import Receiver
from rayllm.serving.handover.sender import Handover, Outcome, ReplicaGoneError, Sender

__all__ = ["ReplicaGoneError", "Handover", "Message", "Outcome", "Receiver", "Sender"]
