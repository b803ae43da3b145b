"""The subprocess that parses one large body: reads stdin, and writes a pickled result or RequestError to stdout.

Its arguments are the name of a function, and what that takes beside the body.
"""

import gc
import pickle
import sys
from collections.abc import Callable

from rayllm.core.errors import RequestError
from rayllm.core.limited_process import limit_process
from rayllm.serving.router.requests.body_summary import summarize
from rayllm.serving.router.requests.texts import texts_of

_CPU_S = 20
_MEMORY_BYTES = 2 << 30


def main() -> None:
    limit_process(_CPU_S, _MEMORY_BYTES)
    # Nothing is freed before the end, and garbage collection would take most of the time.
    gc.disable()
    parse: Callable[..., object] = {each.__name__: each for each in (summarize, texts_of)}[sys.argv[1]]
    pickle.dump(_answer(parse, sys.stdin.buffer.read(), *sys.argv[2:]), sys.stdout.buffer)


def _answer(parse: Callable[..., object], raw: bytes, *arguments: str) -> object:
    try:
        return parse(raw, *arguments)
    except RequestError as error:
        return error
    except MemoryError:
        return RequestError("The request body takes too much memory to read.")


if __name__ == "__main__":
    main()
