"""The subprocess that parses one large body: reads stdin, and writes a pickled Summary or RequestError to stdout."""

from __future__ import annotations

import gc
import pickle
import resource
import sys

from rayllm.errors import RequestError
from rayllm.serving.router.requests.body_summary import Summary, summarize

_CPU_S = 20
_MEMORY_BYTES = 2 << 30


def main() -> None:
    """Read, answer and exit."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Nothing is freed before the end, and garbage collection would take most of the time.
    gc.disable()
    pickle.dump(_answer(sys.stdin.buffer.read()), sys.stdout.buffer)


def _answer(raw: bytes) -> Summary | RequestError:
    try:
        return summarize(raw)
    except RequestError as error:
        return error
    except MemoryError:
        return RequestError("The request body takes too much memory to read.")


if __name__ == "__main__":
    main()
