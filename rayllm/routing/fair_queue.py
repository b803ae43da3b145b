"""A queue with priority classes, in which tenants of one class get equal shares."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rayllm.core.priority import Priority

T = TypeVar("T")
# Counters kept of tenants without tickets.
_MAX_COUNTERS = 1000


@dataclass(eq=False)
class Ticket(Generic[T]):
    """A place in the queue.

    Args:
        tenant: the tenant whose share pays for the ticket.
        cost: expected tokens of the request.
    """

    value: T
    priority: Priority
    tenant: str
    cost: int


@dataclass
class _TenantQueue(Generic[T]):
    """The tickets of one tenant in one class, first come, first served, and the sum of their costs."""

    tickets: OrderedDict[Ticket[T], None] = field(default_factory=OrderedDict)
    tokens: int = 0

    @property
    def head(self) -> Ticket[T]:
        return next(iter(self.tickets))


class _Class(Generic[T]):
    """The tenants of one class, each with a counter of the tokens served.

    `floor` is the counter that the tenant served last had before: a tenant that returns starts there.
    """

    def __init__(self) -> None:
        # Of tenants with equal counters, the first is the next.
        self.queues: OrderedDict[str, _TenantQueue[T]] = OrderedDict()
        self.floor = 0
        self._counters: dict[str, int] = {}

    @property
    def tokens(self) -> int:
        return sum(queue.tokens for queue in self.queues.values())

    @property
    def next_tenant(self) -> str:
        """The tenant that was served least."""
        return min(self.queues, key=self.counter)

    def counter(self, tenant: str) -> int:
        """Tokens that a tenant was served. An idle tenant saves nothing up."""
        return max(self.floor, self._counters.get(tenant, 0))

    def add(self, tenant: str, tokens: int) -> None:
        """Count tokens as served; a negative number takes some back."""
        self._counters[tenant] = max(self.floor, self.counter(tenant) + tokens)
        if len(self._counters) > _MAX_COUNTERS + len(self.queues):
            self._counters = {name: self.counter(name) for name in self.queues}

    def serve(self, tenant: str, tokens: int) -> None:
        """Count the tokens of the next tenant, whose turn ends with that."""
        self.floor = self.counter(tenant)
        self.add(tenant, tokens)
        if tenant in self.queues:
            self.queues.move_to_end(tenant)


class FairQueue(Generic[T]):
    """Serves higher classes first, in a class the tenant with the fewest tokens served, of a tenant the oldest ticket.

    Source: Y. Sheng et al., Fairness in serving large language models (virtual token counters), OSDI 2024.
    """

    def __init__(self) -> None:
        self._classes: dict[Priority, _Class[T]] = {priority: _Class() for priority in Priority}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, ticket: Ticket[T], at_head: bool = False) -> None:
        """Add a ticket.

        Args:
            at_head: the ticket was popped and then not served: its turn comes before all others of its tenant.
        """
        tenants = self._classes[ticket.priority]
        queue = tenants.queues.setdefault(ticket.tenant, _TenantQueue())
        queue.tickets[ticket] = None
        queue.tokens += ticket.cost
        self._size += 1
        if at_head:
            queue.tickets.move_to_end(ticket, last=False)
            tenants.add(ticket.tenant, -ticket.cost)
            tenants.queues.move_to_end(ticket.tenant, last=False)

    @property
    def head(self) -> Ticket[T] | None:
        """The ticket to serve next; None if the queue is empty."""
        for tenants in self._classes.values():
            if tenants.queues:
                return tenants.queues[tenants.next_tenant].head
        return None

    def remove(self, ticket: Ticket[T]) -> bool:
        """Remove a ticket without serving it. Returns whether the ticket was queued."""
        queues = self._classes[ticket.priority].queues
        queue = queues.get(ticket.tenant)
        if queue is None or ticket not in queue.tickets:
            return False
        del queue.tickets[ticket]
        queue.tokens -= ticket.cost
        self._size -= 1
        if not queue.tickets:
            del queues[ticket.tenant]
        return True

    def pop(self) -> Ticket[T]:
        """Remove the head and count it as served. Raises IndexError if the queue is empty."""
        ticket = self.head
        if ticket is None:
            raise IndexError("pop from an empty queue")
        self._classes[ticket.priority].serve(ticket.tenant, ticket.cost)
        self.remove(ticket)
        return ticket

    def charge(self, priority: Priority, tenant: str, tokens: int) -> None:
        """Correct what a tenant was served by `tokens`, negative if a ticket cost less than expected."""
        self._classes[priority].add(tenant, tokens)

    def tokens_ahead(self, priority: Priority, tenant: str, cost: int) -> int:
        """Tokens that would be served before a new ticket, if no other ticket followed."""
        higher = sum(self._classes[other].tokens for other in Priority if other < priority)
        tenants = self._classes[priority]
        own = tenants.queues[tenant].tokens if tenant in tenants.queues else 0
        # Until its turn, each other tenant is served until its counter is the same.
        end = tenants.counter(tenant) + own + cost
        others = sum(
            min(queue.tokens, max(0, end - tenants.counter(name)))
            for name, queue in tenants.queues.items()
            if name != tenant
        )
        return higher + own + others

    def to_displace(self, priority: Priority, tenant: str, cost: int) -> Ticket[T] | None:
        """The ticket to drop from a full queue for a new one; None if the new ticket has less right to a place.

        That is the newest ticket of the tenant with the most tokens queued in the lowest class.
        """
        lowest = max((priority for priority, tenants in self._classes.items() if tenants.queues), default=None)
        if lowest is None or lowest < priority:
            return None
        queues = self._classes[lowest].queues
        largest = max(queues, key=lambda name: queues[name].tokens)
        if lowest == priority:
            own = queues[tenant].tokens if tenant in queues else 0
            if largest == tenant or queues[largest].tokens <= own + cost:
                return None
        return next(reversed(queues[largest].tickets))

    def clear(self) -> list[Ticket[T]]:
        """Remove and return all tickets."""
        tickets = [
            ticket
            for tenants in self._classes.values()
            for queue in tenants.queues.values()
            for ticket in queue.tickets
        ]
        for tenants in self._classes.values():
            tenants.queues.clear()
        self._size = 0
        return tickets
