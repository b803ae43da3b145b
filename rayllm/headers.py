"""What routers and replicas say to each other by HTTP: headers, in lower case, and paths."""

KEY = "x-rayllm-key"
"""The replica's key, which shows that a router asks."""

WORK = "x-rayllm-work"
"""Tokens that the request is expected to cost."""

FULL = "x-rayllm-full"
"""In a reply: the replica has no free slot, and has done nothing."""

LEAVING = "x-rayllm-leaving"
"""In a reply: the replica takes no more requests, and has written nothing to the client."""

LOST = "x-rayllm-lost"
"""In a reply: the replica's engine died with the request in hand, and nothing was written to the client."""

MODEL = "x-rayllm-model"
"""The model's name as the client wrote it: an id, an alias or an adapter's name."""

ADAPTER = "x-rayllm-adapter"
"""Name of the adapter that the model's name means, without its base; absent for a base."""

ADAPTER_PATH = "x-rayllm-adapter-path"
"""Where that adapter lies, percent-encoded, if it was loaded from a place of its own."""

ADAPTER_ANEW = "x-rayllm-adapter-anew"
"""Present where the adapter is to be had at its newest version, whatever is there or was tried before."""

SESSION = "x-session-id"
"""From clients: requests of one session go to one replica where `router.routing` is `session`."""

ADAPTERS_PATH = "/rayllm/adapters"
"""Where replicas answer routers which adapters are there: `{"names": […]}` is answered by `{"missing": […]}`."""
