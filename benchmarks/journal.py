"""What the journals cost by which streams outlive their replica.

python -m benchmarks.journal           CPU per token with journals and without, two servers in turns
python -m benchmarks.journal --write   also put the table into docs/reliability.md

No option turns journals off. The second server runs with a `sitecustomize` that keeps its routers from opening any.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.compare import PAGE, publish, read_options, rows, take_turns
from benchmarks.servers import Server, rayllm
from benchmarks.telemetry import model_file
from benchmarks.turns import Running, streams_turn

STREAMS, TOKENS = (8, 32, 128), 128
ROUNDS, REQUESTS = 11, 96
_MEASURES = ("CPU s / 1000 tokens", "tokens/s", "first token p50, ms", "gap p99, ms")
_WITHOUT = """
from rayllm.serving.router.requests.client_request import ClientRequest

ClientRequest.open_journal = lambda self: None
"""


@contextmanager
def without_journals(model: Path) -> Iterator[Server]:
    """A server whose routers open no journals."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(_WITHOUT)
        with rayllm(model, {"PYTHONPATH": folder}, name="without") as server:
            yield server


def _has_journals(running: Running) -> bool:
    """Whether the server's processes hold journals while it streams."""
    with ThreadPoolExecutor(1) as clients:
        turn = clients.submit(streams_turn, running, streams=8, tokens=TOKENS)
        found = False
        while not turn.done():
            found = found or any("memfd:rayllm-journal" in target for target in running.server.open_files())
            time.sleep(0.01)
        turn.result()
    return found


def main() -> None:
    """Measure, and print or write the table."""
    read_options(__doc__)
    table = ["| streams | measure | with | without | ratio | range |", "|--:|---|--:|--:|--:|---|"]
    with tempfile.TemporaryDirectory() as folder:
        model = model_file(Path(folder), "model")
        with rayllm(model, name="with") as server, without_journals(model) as other:
            running = [Running("rayllm", each, "rayllm-demo") for each in (server, other)]
            if [_has_journals(each) for each in running] != [True, False]:
                raise SystemExit("The servers do not differ in what they are to differ in.")
            for streams in STREAMS:
                turn = partial(streams_turn, streams=streams, tokens=TOKENS, requests=max(REQUESTS, streams))
                with_them, without = take_turns(running, turn, ROUNDS)
                measures = {name: lambda taken, name=name: taken[name] for name in _MEASURES}
                table += rows(str(streams), with_them, without, measures)
    publish("journal", "\n".join(table), PAGE.with_name("reliability.md"))


if __name__ == "__main__":
    main()
