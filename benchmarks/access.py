"""What keys and limits cost a request.

python -m benchmarks.access           two measurements
python -m benchmarks.access --write   also put the tables into docs/access.md

1. Time to the first token on the paced engine, with keys and limits and without, two servers in turns.
2. Finding a key among 10 and among 100,000.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import paced
from benchmarks.compare import PAGE, publish, read_options, take_turns
from benchmarks.servers import rayllm
from benchmarks.turns import Running, streams_turn
from rayllm.access import Key, KeyFile, Keyring, new_key
from rayllm.access.key import key_hash

DOCS = PAGE.parent / "access.md"
ROUNDS, REQUESTS, TOKENS = 15, 100, 2
STREAMS = (1, 32)
KEYS = (10, 100_000)
LOOKUPS = 20_000
# Never reached: what is measured are requests that go on.
LIMITS = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12, "tokens_per_day": 10**13}


def first_token_table() -> str:
    """Milliseconds to the first token: medians, and the median of the differences of neighbouring rounds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, variables = paced.write_model(folder), paced.variables(folder)
        secret, file = new_key(), KeyFile(str(folder / "keys.yaml"))
        with file.change() as keys:
            keys.append(Key(name="bench", hash=key_hash(secret, file.salt), **LIMITS))
        table = [
            "| streams | with keys and limits, ms | without, ms | difference, ms | range |",
            "|--:|--:|--:|--:|--:|",
        ]
        options = {"keys": file.uri, "usage": str(folder / "usage")}
        with (
            rayllm(model, variables, name="with keys", router=options) as with_keys,
            rayllm(model, variables, name="without keys") as without,
        ):
            with_keys = replace(with_keys, headers={"Authorization": f"Bearer {secret}"})
            for streams in STREAMS:
                running = [Running("rayllm", server, paced.MODEL) for server in (with_keys, without)]
                turn = partial(streams_turn, streams=streams, tokens=TOKENS, requests=max(REQUESTS, 4 * streams))
                took = [[seen["first token p50, ms"] for seen in each] for each in take_turns(running, turn, ROUNDS)]
                differences = sorted(a - b for a, b in zip(*took, strict=True))
                on, off = (statistics.median(each) for each in took)
                table.append(
                    f"| {streams} | {on:.2f} | {off:.2f} | {statistics.median(differences):.2f} | "
                    f"{differences[0]:.2f} to {differences[-1]:.2f} |"
                )
    return "\n".join(table)


def lookup_table() -> str:
    """Microseconds to find a key."""
    salt = b"s" * 32
    table = ["| keys | finding one, µs |", "|--:|--:|"]
    for count in KEYS:
        secrets = [new_key() for _ in range(count)]
        keyring = Keyring(salt, [Key(name=f"key-{i}", hash=key_hash(key, salt)) for i, key in enumerate(secrets)])
        asked = (secrets * (LOOKUPS // count + 1))[:LOOKUPS]
        took = []
        for _ in range(5):
            started_at = time.perf_counter()
            for key in asked:
                keyring.find(key)
            took.append(1e6 * (time.perf_counter() - started_at) / LOOKUPS)
        table.append(f"| {count:,} | {statistics.median(took):.2f} |")
    return "\n".join(table)


if __name__ == "__main__":
    read_options(__doc__)
    publish("lookup", lookup_table(), DOCS)
    publish("first token", first_token_table(), DOCS)
