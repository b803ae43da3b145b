"""Sending an exchange to a replica, by whichever lane leads there."""

from dataclasses import dataclass
from typing import Protocol

from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.handover.lane import hand_over
from rayllm.serving.wire.handover.sender import Sender
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome
from rayllm.serving.wire.relay.lane import relay
from rayllm.serving.wire.relay.transport import Address, HttpTransport


class Replica(Address, Protocol):
    """Where a replica is. `sender` is None for one on another node, or whose socket is not known."""

    @property
    def sender(self) -> Sender | None:
        """The way to a replica on this node."""


@dataclass(frozen=True)
class Wire:
    """The road to all replicas, with connections to replicas by HTTP."""

    transport: HttpTransport

    async def send(self, exchange: Exchange, replica: Replica) -> Outcome:
        """Have a replica answer an exchange.

        Raises:
            UnavailableError, EngineError: the replica's own reason for not answering.
            RefusedError, GuardError: the guard of the reply refuses it, or fails.
            ClientDisconnect: cancelled after the reply had begun, so that no other answer is possible.
        """
        exchange.sent()
        outcome = None
        try:
            outcome = await hand_over(exchange, replica.id, replica.sender) if replica.sender else None
            outcome = outcome or await relay(exchange, replica, self.transport)
        except NotAnsweredError as error:
            outcome = error.outcome
        finally:
            if outcome is None or not outcome.is_final:
                exchange.returned()
        return outcome
