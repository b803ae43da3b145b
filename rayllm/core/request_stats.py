"""What an engine did for one request, as replicas tell routers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from starlette.types import Scope

FinishReason = Literal["stop", "length", "abort", ""]
_EXTENSION = "rayllm.request_stats"


@dataclass(frozen=True)
class RequestStats:
    """Tokens of a request, and where its time in the replica went.

    Attributes:
        prompt_tokens: tokens of all prompts, each counted once, however many answers it has.
        cached_tokens: tokens of the prompts that were in the KV cache.
        generated_tokens: tokens of all `answers`.
        adapter_s: seconds until the adapter is loaded; the next five phases follow one another.
        prepare_s: seconds until the engine has the prompt's tokens.
        queued_s: seconds until the first sequence is scheduled.
        prefill_s: seconds until the first token.
        decode_s: seconds until the last token.
        deliver_s: seconds until the client's socket has accepted the whole reply.
        finish_reason: the last answer's; "abort" for an unfinished answer, and "" if nothing is generated.
        blocked_s: seconds that the reply waited for a client that did not read.
        held_s: seconds that the request waited for a slot of the replica.
        slowest_gap_s: longest time between two tokens.
        preemptions: how often the engine preempted the request for want of KV cache.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    finish_reason: FinishReason = ""
    answers: int = 0
    adapter_s: float = 0.0
    prepare_s: float = 0.0
    deliver_s: float = 0.0
    blocked_s: float = 0.0
    slowest_gap_s: float = 0.0
    preemptions: int = 0
    held_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of all answers."""
        return self.prompt_tokens + self.generated_tokens

    @property
    def total_s(self) -> float:
        """From the replica's first sight of the request to the end of the reply."""
        return sum(seconds for _, seconds in self.parts)

    @property
    def parts(self) -> list[tuple[str, float]]:
        """The phases in the replica by name, in seconds and in order."""
        before = [("adapter", self.adapter_s), ("prepare", self.prepare_s), ("queue", self.queued_s)]
        return [*before, ("prefill", self.prefill_s), ("decode", self.decode_s), ("deliver", self.deliver_s)]

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between two tokens of an answer; None if no answer has two."""
        gaps = self.generated_tokens / self.answers - 1 if self.answers else 0.0
        return self.decode_s / gaps if gaps > 0 else None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the values of `as_json`; keys of another version are ignored."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})

    def as_json(self) -> dict[str, Any]:
        """The values by name, as JSON."""
        return asdict(self)


def server_timing(parts: Iterable[tuple[str, float]]) -> str:
    """The value of a `Server-Timing` header, without parts that took no time.

    Source: https://www.w3.org/TR/server-timing/
    """
    return ", ".join(f"{name};dur={1000 * seconds:.3f}" for name, seconds in parts if seconds)


class StatsSource:
    """Where a server of an ASGI application finds a request's stats, once the application has begun its work."""

    def __init__(self) -> None:
        self.read: Callable[[], RequestStats | None] = lambda: None
        self.held_s = 0.0

    @property
    def stats(self) -> RequestStats | None:
        """The stats; None if the application has done nothing for the request."""
        stats = self.read()
        return replace(stats, held_s=self.held_s) if stats and self.held_s else stats

    def add_to(self, scope: Scope) -> None:
        """Offer this source to the application."""
        scope["extensions"] = {**scope.get("extensions", {}), _EXTENSION: self}

    @staticmethod
    def in_scope(scope: Scope) -> "StatsSource | None":
        """The source that the server offers; None from a server that wants no stats."""
        source: StatsSource | None = scope.get("extensions", {}).get(_EXTENSION)
        return source
