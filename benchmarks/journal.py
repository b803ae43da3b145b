"""What the journals cost by which streams outlive their replica.

python -m benchmarks.journal           CPU per token with journals and without, in turns of one server
python -m benchmarks.journal --write   also put the table into docs/reliability.md

No option turns journals off. The server runs with a `sitecustomize` that opens none for requests with a header.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.compare import PAGE, publish, read_options, rows, take_turns
from benchmarks.servers import Server, rayllm
from benchmarks.telemetry import model_file
from benchmarks.turns import Running, streams_turn

TOKENS, REQUESTS = 128, 64
# With more streams a round is shorter, and its CPU time varies more.
ROUNDS = {8: 11, 32: 11, 128: 22}
_MEASURES = ("CPU s / 1000 tokens", "tokens/s", "first token p50, ms", "gap p99, ms")
_NO_JOURNAL = "x-no-journal"
_SITE = f"""
from rayllm.serving.wire.exchange import Exchange

open_journal = Exchange.open_journal
Exchange.open_journal = lambda self: None if {_NO_JOURNAL!r} in self.request.headers else open_journal(self)
"""


@contextmanager
def server_with_choice(model: Path) -> Iterator[Server]:
    """A server that opens no journal for requests with the header."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(_SITE)
        with rayllm(model, {"PYTHONPATH": folder}) as server:
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
        with server_with_choice(model) as server:
            both = server, replace(server, headers={_NO_JOURNAL: "1"})
            running = [Running("rayllm", each, "rayllm-demo") for each in both]
            if [_has_journals(each) for each in running] != [True, False]:
                raise SystemExit("The header does not decide whether there are journals.")
            for streams, rounds in ROUNDS.items():
                turn = partial(streams_turn, streams=streams, tokens=TOKENS, requests=max(REQUESTS, streams))
                with_them, without = take_turns(running, turn, rounds)
                measures = {name: lambda taken, name=name: taken[name] for name in _MEASURES}
                table += rows(str(streams), with_them, without, measures)
    publish("journal", "\n".join(table), PAGE.with_name("reliability.md"))


if __name__ == "__main__":
    main()
