"""Handover of a client's connection from a router to a replica on the same node.

The router parses the request and picks a replica; the replica writes the reply directly to the client's socket, and
reports when it is done. No byte of the reply passes through the router, which keeps reading from the connection: the
client's disconnect, or its next request.
"""

from rayllm.serving.handover.channel import Interruption, Message
from rayllm.serving.handover.receiver import Receiver
from rayllm.serving.handover.sender import Handover, Outcome, ReplicaGoneError, Sender

__all__ = ["Handover", "Interruption", "Message", "Outcome", "Receiver", "ReplicaGoneError", "Sender"]
