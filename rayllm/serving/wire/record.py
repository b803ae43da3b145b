"""The record of one request: what a router counts, logs and traces."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayllm.core.request_stats import RequestStats

CLIENT_LEFT = 499
"""Status of requests whose client left before the reply began, as in nginx."""
_NO_STATS = RequestStats()
# Parts of each phase.
_PHASES = {
    "router": ("router", "hooks", "guards", "transfer", "prepare"),
    "waiting": ("lost", "wait", "adapter"),
    "queued": ("queue",),
    "prefill": ("prefill",),
    "decode": ("decode", "deliver"),
}


@dataclass
class RequestRecord:
    """One request, from its headers to the end of its reply. Times `…_at` are those of `time.perf_counter()`.

    Attributes:
        endpoint: path of the request.
        model_id: model; empty until it is known.
        adapter: adapter's own name; empty for a base model.
        status: status that the client got; 0 before the reply, 499 if the client left first.
        refusal: code of the error that the router answered with.
        error_status: status of that error, which the client does not get if the reply had begun.
        attempts: replicas that the request was sent to.
        fallbacks: fallback models that the request was sent to.
        continuations: times that another replica continued a reply that had begun.
        replica: last replica that the request was sent to.
        choice: why the router chose that replica.
        waited_for: what the request had to wait for.
        created: arrival, in seconds since the epoch.
        routed_at: when the model was known and the router began to look for a replica.
        sent_at: when the request was sent to the replica.
        first_byte_at: when the reply began.
        lost_s: seconds with replicas that did not answer.
        hooks_s: seconds with policy hooks.
        guards_s: seconds with guards, about the request.
        reply_guards_s: seconds with guards, about the reply.
        stats: the replica's figures; None if it reported none.
        key: name of the sender's key; empty without keys.
        labels: labels of that key.
        span: OpenTelemetry's span; None without tracing.
        trace_headers: headers that continue the trace in the replica.
    """

    endpoint: str
    request_id: str = ""
    model_id: str = ""
    adapter: str = ""
    status: int = 0
    refusal: str = ""
    error_status: int = 0
    attempts: int = 0
    fallbacks: int = 0
    continuations: int = 0
    replica: str = ""
    choice: str = ""
    waited_for: str = ""
    created: float = field(default_factory=time.time)
    started_at: float = field(default_factory=time.perf_counter)
    routed_at: float | None = None
    sent_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float = 0.0
    lost_s: float = 0.0
    hooks_s: float = 0.0
    guards_s: float = 0.0
    reply_guards_s: float = 0.0
    stats: RequestStats | None = None
    key: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    span: Any = None
    trace_headers: dict[str, str] = field(default_factory=dict)

    def routed(self) -> None:
        """Note that the model is known, and the router looks for a replica."""
        if self.routed_at is None:
            self.routed_at = time.perf_counter()

    def sent_to(self, replica: str, choice: str = "", waited_for: str = "") -> None:
        """Note that the request is sent to a replica."""
        self.attempts += 1
        self.replica, self.choice, self.sent_at = replica, choice, time.perf_counter()
        self.waited_for = waited_for or self.waited_for

    def came_back(self, was_full: bool = False) -> None:
        """Note that the replica did not answer, and the router looks for another.

        `was_full` if the replica had no free slot, so that the request only waited there.
        """
        if self.sent_at is not None:
            if not was_full:
                self.lost_s += time.perf_counter() - self.sent_at
            self.sent_at = None

    def began(self) -> None:
        if self.first_byte_at is None:
            self.first_byte_at = time.perf_counter()

    def answered(self, status: int) -> None:
        """Note the status that the client got; a later status does not count."""
        self.status = self.status or status

    def refused(self, status: int, code: str) -> None:
        """Note that the router answers with an error of its own."""
        self.refusal, self.error_status = code, status

    def end(self) -> None:
        """Note that the reply is complete, or the client has left."""
        self.ended_at = time.perf_counter()
        self.status = self.status or CLIENT_LEFT

    @property
    def outcome(self) -> int:
        """Status of the error that ended the request, even if the reply had begun; else the status."""
        return self.error_status or self.status

    @property
    def total_s(self) -> float:
        """Seconds from the request's headers to the end of the reply."""
        return self.ended_at - self.started_at

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the request's headers to the first token; None without generated tokens."""
        stats = self.stats
        if not stats or not stats.generated_tokens:
            return None
        if self.continuations and self.first_byte_at is not None:
            # The stats are the last replica's, and the first token came from the first replica.
            return self.first_byte_at - self.started_at
        return max(0.0, self.total_s - stats.decode_s - stats.deliver_s)

    @property
    def tokens(self) -> int | None:
        """Tokens of the prompt and of all answers; None if a replica generated an unknown number of tokens."""
        if self.stats:
            return self.stats.tokens
        is_refused_by_replica = self.status >= 400 and self.status != CLIENT_LEFT and not self.refusal
        has_worked = self.sent_at is not None or self.continuations
        return None if has_worked and not is_refused_by_replica else 0

    def parts(self, until: float | None = None) -> list[tuple[str, float]]:
        """Seconds of the request until its end, or `until`, by what the time was spent on, in order."""
        end = self.ended_at if until is None else until
        routed_at = end if self.routed_at is None else self.routed_at
        sent_at = end if self.sent_at is None else self.sent_at
        stats = self.stats or _NO_STATS
        # What the replica's figures do not explain.
        transfer_s = max(0.0, end - sent_at - stats.held_s - stats.total_s)
        # The replica continues to generate while guards are asked.
        reply_guards_s = min(self.reply_guards_s, transfer_s)
        return [
            ("router", routed_at - self.started_at - self.hooks_s - self.guards_s),
            ("hooks", self.hooks_s),
            ("guards", self.guards_s + reply_guards_s),
            ("lost", self.lost_s),
            ("wait", max(0.0, sent_at - routed_at - self.lost_s) + stats.held_s),
            ("transfer", transfer_s - reply_guards_s),
            *stats.parts,
        ]

    def as_json(self) -> dict[str, Any]:
        """The record for logs, without prompt or answer."""
        stats = self.stats or _NO_STATS
        parts, first_token_s = defaultdict(float, self.parts()), self.first_token_s
        # The phases add up to the total.
        phases = {f"{phase}_s": sum(parts[name] for name in names) for phase, names in _PHASES.items()}
        return {
            "id": self.request_id,
            "created": round(self.created, 3),
            "key": self.key,
            "labels": dict(self.labels),
            "endpoint": self.endpoint,
            "model": self.model_id,
            "adapter": self.adapter,
            "status": self.status,
            "error": self.refusal,
            "finish_reason": stats.finish_reason,
            **{name: round(seconds, 6) for name, seconds in phases.items()},
            "total_s": round(self.total_s, 6),
            "first_token_s": None if first_token_s is None else round(first_token_s, 6),
            "parts": {name: round(seconds, 6) for name, seconds in self.parts() if seconds},
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "completion_tokens": stats.generated_tokens,
            "slowest_gap_s": round(stats.slowest_gap_s, 6),
            "blocked_s": round(stats.blocked_s, 6),
            "preemptions": stats.preemptions,
            "replica": self.replica,
            "choice": self.choice,
            "waited_for": self.waited_for,
            "attempts": self.attempts,
            "fallbacks": self.fallbacks,
            "continuations": self.continuations,
        }
