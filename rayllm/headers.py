"""Headers between router and replica, in lower case."""

LEASE = "x-rayllm-lease"
"""Id of the lease that the exchange uses up."""

MODEL = "x-rayllm-model"
"""The model's name as the client wrote it: an id, an alias or an adapter's name."""
