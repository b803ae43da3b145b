"""A queue with priority classes, in which tenants of one class get equal shares."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rayllm.scheduling.priority import Priority

T = TypeVar("T")
# Tokens that each tenant may be served in its turn. Less than most requests cost: a tenant with few requests would
# otherwise wait for many of another.
_QUANTUM = 16


@dataclass(eq=False)
class Ticket(Generic[T]):
    """A place in the queue.

    Args:
        value: what waits.
        priority: its class.
        tenant: whose share it is served from.
        cost: what serving it takes, in tokens.
    """

    value: T
    priority: Priority
    tenant: str
    cost: int


@dataclass
class _TenantQueue(Generic[T]):
    """The tickets of one tenant in one class, first come, first served.

    `deficit` are the tokens that it may be served in its turn, with the quantum of this turn once it `has_turn`.
    """

    tickets: OrderedDict[Ticket[T], None] = field(default_factory=OrderedDict)
    deficit: int = 0
    has_turn: bool = False
    tokens: int = 0

    @property
    def head(self) -> Ticket[T]:
        return next(iter(self.tickets))


class FairQueue(Generic[T]):
    """Higher classes go first; within a class tenants take turns by deficit round robin in tokens; within a tenant the
    oldest ticket goes first.

    Source: M. Shreedhar, G. Varghese, Efficient fair queueing using deficit round robin, SIGCOMM 1995.
    """

    def __init__(self) -> None:
        # The first tenant of a class is the one whose turn it is.
        self._classes: dict[Priority, OrderedDict[str, _TenantQueue[T]]] = {
            priority: OrderedDict() for priority in Priority
        }
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, ticket: Ticket[T], at_head: bool = False) -> None:
        """Add a ticket.

        Args:
            ticket: the ticket.
            at_head: whether it has had its turn before, and is the next of its class again.
        """
        tenants = self._classes[ticket.priority]
        queue = tenants.setdefault(ticket.tenant, _TenantQueue())
        queue.tickets[ticket] = None
        queue.tokens += ticket.cost
        self._size += 1
        if at_head:
            queue.tickets.move_to_end(ticket, last=False)
            queue.deficit += ticket.cost
            queue.has_turn = True
            tenants.move_to_end(ticket.tenant, last=False)

    @property
    def head(self) -> Ticket[T] | None:
        """The ticket that is served next; None if there is none."""
        for tenants in self._classes.values():
            if tenants:
                return self._next_of(tenants).head
        return None

    def remove(self, ticket: Ticket[T]) -> bool:
        """Remove a ticket that is not to be served. Returns whether it was queued."""
        tenants = self._classes[ticket.priority]
        queue = tenants.get(ticket.tenant)
        if queue is None or ticket not in queue.tickets:
            return False
        del queue.tickets[ticket]
        queue.tokens -= ticket.cost
        self._size -= 1
        if not queue.tickets:
            # Who has nothing to be served saves nothing up.
            del tenants[ticket.tenant]
        return True

    def pop(self) -> Ticket[T]:
        """Remove the head, to serve it. Raises IndexError if the queue is empty."""
        ticket = self.head
        if ticket is None:
            raise IndexError("pop from an empty queue")
        self._classes[ticket.priority][ticket.tenant].deficit -= ticket.cost
        self.remove(ticket)
        return ticket

    def charge(self, priority: Priority, tenant: str, tokens: int) -> None:
        """Correct what a tenant was served, if it has more in the queue: `tokens` beyond its ticket's cost."""
        if queue := self._classes[priority].get(tenant):
            queue.deficit -= tokens

    def tokens_ahead(self, priority: Priority, tenant: str, cost: int) -> int:
        """Tokens that would be served before a new ticket, if none came after it."""
        higher = sum(self._tokens(other) for other in Priority if other < priority)
        tenants = self._classes[priority]
        own = tenants[tenant].tokens if tenant in tenants else 0
        # Until its turn, each other tenant is served as much as its own.
        others = sum(min(queue.tokens, own + cost) for name, queue in tenants.items() if name != tenant)
        return higher + own + others

    def to_displace(self, priority: Priority, tenant: str, cost: int) -> Ticket[T] | None:
        """The ticket that has less right to a place in a full queue than a new one: the newest of the tenant that has
        most in the lowest class; None if there is none.
        """
        lowest = max((priority for priority, tenants in self._classes.items() if tenants), default=None)
        if lowest is None or lowest < priority:
            return None
        tenants = self._classes[lowest]
        largest = max(tenants, key=lambda name: tenants[name].tokens)
        if lowest == priority:
            own = tenants[tenant].tokens if tenant in tenants else 0
            if largest == tenant or tenants[largest].tokens <= own + cost:
                return None
        return next(reversed(tenants[largest].tickets))

    def clear(self) -> list[Ticket[T]]:
        """Remove all tickets, and return them."""
        tickets = [
            ticket for tenants in self._classes.values() for queue in tenants.values() for ticket in queue.tickets
        ]
        for tenants in self._classes.values():
            tenants.clear()
        self._size = 0
        return tickets

    def _tokens(self, priority: Priority) -> int:
        return sum(queue.tokens for queue in self._classes[priority].values())

    def _next_of(self, tenants: OrderedDict[str, _TenantQueue[T]]) -> _TenantQueue[T]:
        """The tenant whose turn it is, with a deficit that covers its head."""
        missing = min(queue.head.cost - queue.deficit for queue in tenants.values())
        if (rounds := math.ceil(missing / _QUANTUM) - 1) > 0:
            # Rounds in which nobody could be served.
            for queue in tenants.values():
                queue.deficit += rounds * _QUANTUM
        while True:
            name, queue = next(iter(tenants.items()))
            if not queue.has_turn:
                queue.deficit += _QUANTUM
                queue.has_turn = True
            if queue.deficit >= queue.head.cost:
                return queue
            queue.has_turn = False
            tenants.move_to_end(name)
