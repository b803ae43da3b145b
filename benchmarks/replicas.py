"""What a routing policy does to the time to first token of chats, on two real replicas of the demo.

python -m benchmarks.replicas           print the table
python -m benchmarks.replicas --write   also put it into docs/performance.md
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
import uvloop
import yaml
from ray import serve

from benchmarks.compare import publish, read_options, take_turns
from benchmarks.connection import Connection
from benchmarks.load import CHAT, percentile
from benchmarks.servers import DEMO, free_port
from rayllm import build_app

POLICIES = ("least_loaded", "prefix_aware", "session")
MODEL = "two"
ROUNDS = 3
# Each replica's cache holds two thirds of what all conversations come to.
BLOCK, BLOCKS = 32, 300
SYSTEMS, CHATS, TURNS, AT_ONCE = 4, 20, 6, 4
SYSTEM_WORDS, QUESTION_WORDS, ANSWER_TOKENS = 200, 50, 16


@dataclass
class Seen:
    """What the clients saw in one round. Times in seconds."""

    first: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Chat:
    """A conversation so far."""

    session: str
    messages: list[dict[str, str]]

    def body(self) -> dict[str, Any]:
        """The request for its next answer."""
        length = {"max_tokens": ANSWER_TOKENS, "min_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": MODEL, "messages": self.messages, **length, **stream}


def words(chance: random.Random, count: int) -> str:
    """Text that nobody has sent before."""
    return " ".join(chance.choice(_WORDS) for _ in range(count))


_WORDS = (
    "the",
    "of",
    "capital",
    "France",
    "story",
    "weather",
    "in",
    "a",
    "call",
    "matey",
    "what",
    "is",
    "answer",
    "and",
)


def application(routing: str) -> Any:
    """Two replicas of the demo with small caches, and a router that chooses among them like this."""
    model: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    weights = DEMO.parent / model["model_loading_config"]["model_source"]
    model["model_loading_config"] = {"model_id": MODEL, "model_source": str(weights.resolve())}
    model["engine_kwargs"] |= {"block_size": BLOCK, "num_gpu_blocks_override": BLOCKS, "max_num_seqs": 16}
    model["engine_kwargs"]["enable_prompt_tokens_details"] = True
    model["deployment_config"] = {"num_replicas": 2}
    del model["lora_config"]
    return build_app({"llm_configs": [model], "router": {"routing": routing}})


def turn(url: str, chance: random.Random, routing: str) -> Seen:
    """A round of new conversations under one policy."""
    # The model's processes stay: what changes is told to the router that runs.
    serve.run(application(routing), name=MODEL, route_prefix="/")
    seen = Seen()
    uvloop.run(_talk(url, chance, seen))
    return seen


async def _talk(url: str, chance: random.Random, seen: Seen) -> None:
    systems = [words(chance, SYSTEM_WORDS) for _ in range(SYSTEMS)]
    chats = [Chat(words(chance, 4), [_message("system", systems[number % SYSTEMS])]) for number in range(CHATS)]
    chance.shuffle(chats)
    # All conversations go on side by side, a few turns at once, as people's do.
    for _ in range(TURNS):
        left = iter(chats)
        await asyncio.gather(*(_client(url, chance, left, seen) for _ in range(AT_ONCE)))


async def _client(url: str, chance: random.Random, chats: Iterator[Chat], seen: Seen) -> None:
    connection = Connection(url)
    for chat in chats:
        chat.messages.append(_message("user", words(chance, QUESTION_WORDS)))
        answer = await connection.ask(connection.request(CHAT, chat.body(), {"x-session-id": chat.session}))
        answer.check()
        # Whatever it said: the next turn holds as many words.
        chat.messages.append(_message("assistant", words(chance, ANSWER_TOKENS)))
        seen.first.append(answer.token_times[0] - answer.sent)
        seen.prompt_tokens += answer.usage["prompt_tokens"]
        seen.cached_tokens += (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    connection.close()


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def table(rounds: list[list[Seen]]) -> str:
    """A row a policy, the times beside those of the first in the same round."""
    rows = [
        "| policy | prompt found in a cache | first token p50, ms | beside the first | p90, ms | beside the first |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for policy, taken in zip(POLICIES, rounds, strict=True):
        saved = statistics.median(seen.cached_tokens / seen.prompt_tokens for seen in taken)
        cells = [f"{saved:.1%}"]
        for share in (50, 90):
            values = [percentile(seen.first, share) for seen in taken]
            base = [percentile(seen.first, share) for seen in rounds[0]]
            ratios = sorted(value / beside for value, beside in zip(values, base, strict=True))
            cells.append(f"{1000 * statistics.median(values):.1f}")
            cells.append(f"×{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")
        rows.append(f"| `{policy}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    read_options(__doc__)
    port = free_port()
    # As `rayllm run` does.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(address="local", namespace="serve", num_cpus=8, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="Disabled")
    try:
        one = partial(turn, f"http://127.0.0.1:{port}", random.Random(1))
        print("both replicas start …", file=sys.stderr)
        publish("replicas", table(take_turns(POLICIES, one, ROUNDS)))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
