"""HTTP headers, in lower case, and paths that routers and replicas use among themselves."""

KEY = "x-rayllm-key"
"""The replica's key, known to routers only."""

WORK = "x-rayllm-work"
"""Expected cost of the request in tokens."""

FULL = "x-rayllm-full"
"""In a reply: the replica has no free slot and did nothing."""

PREEMPTED = "x-rayllm-put-back"
"""In a reply: the replica gave the request's slot to a request of a higher class, and sent nothing to the client."""

DRAINING = "x-rayllm-leaving"
"""In a reply: the replica is draining and has sent nothing to the client."""

LOST = "x-rayllm-lost"
"""In a reply: the replica's engine died on the request, and nothing was sent to the client."""

MODEL = "x-rayllm-model"
"""The model's name in the client's request: an id, an alias or an adapter."""

ADAPTER = "x-rayllm-adapter"
"""The adapter's name without its base model; absent for the base model."""

ADAPTER_SOURCE = "x-rayllm-adapter-path"
"""The source of an adapter that an administrator has registered, percent-encoded."""

ADAPTER_RELOAD = "x-rayllm-adapter-reload"
"""Present if the adapter is to be loaded at its newest version, whatever is loaded or failed before."""

FOR_CLIENTS = ("content-type", "retry-after", "x-should-retry")
"""Headers of replicas' replies that clients get."""

REQUEST_ID = "x-request-id"
"""From clients and to them: the request's id. Its longest is `LONGEST_REQUEST_ID`."""

LONGEST_REQUEST_ID = 200

SESSION = "x-session-id"
"""From clients: with `router.routing: session`, requests of one session go to one replica."""

PRIORITY = "x-rayllm-priority"
"""From clients and to replicas: the request's class, `interactive`, `standard` or `batch`."""

TENANT = "x-rayllm-tenant"
"""To replicas: whose share of the slots the request is part of."""

WAITS = "x-rayllm-waits"
"""To replicas: no replica is known to have a free slot, so the request waits a moment for one."""

KEEPS_SLOT = "x-rayllm-keeps-slot"
"""To replicas: the request has been preempted so often that no other request takes its slot."""

TIMING = "x-rayllm-timing"
"""From clients: `1` asks for a `Server-Timing` header."""

IGNORED_TOOLS = "x-rayllm-ignored-tools"
"""In a reply: the types of the tools that were left out of the request, since nobody here runs them."""

USAGE = "x-rayllm-usage"
"""The name of the key whose usage the request is."""

LABELS = "x-rayllm-labels"
"""The labels of that key, as JSON; absent if it has none."""

JOURNAL = "x-rayllm-journal"
"""To replicas: the journal of a stream that the router relays, as JSON. The tokens come before the request's body."""

FRAMES = "x-rayllm-frames"
"""In a request: the router accepts framed streams. In a reply: the body is framed. See `serving.wire.relay.frames`."""

STATS = "x-rayllm-stats"
"""In a complete reply: what the engine did for the request, as JSON. A stream has it in a frame."""

METRICS_URL = "/rayllm/metrics"
"""Metrics of a replica, in the format that the `Accept` header asks for."""

LOOKUP_URL = "/rayllm/adapters"
"""Lookup of adapters at a replica: `{"names": […]}` is answered by `{"missing": […]}`."""
