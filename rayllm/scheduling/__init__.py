"""The order in which queued requests are served, free of Ray and HTTP."""

from rayllm.scheduling.fair_queue import FairQueue, Ticket
from rayllm.scheduling.priority import Priority, PriorityName
from rayllm.scheduling.service_rate import ServiceRate

__all__ = ["FairQueue", "Priority", "PriorityName", "ServiceRate", "Ticket"]
