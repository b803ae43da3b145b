"""Autoscaling policy for Ray Serve, based on what an engine runs short of.

Serve pickles the policy by value and calls it in its controller ten times a second, so it depends on nothing but its
arguments. Serve bounds the result by `min_replicas` and `max_replicas`, and delays it by `upscale_delay_s`,
`downscale_delay_s` and `downscale_to_zero_delay_s`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.serve.config import AutoscalingContext

from rayllm.config.scaling import AutoscalingConfig

Recorded = Mapping[Any, float]
"""A recorded metric by replica."""


@dataclass(frozen=True)
class EngineLoadPolicy:
    """Number of replicas for the requests, the prompts queued in the engines, and the KV cache in use.

    Replicas report `ongoing`, `queued_tokens` and `kv_use` through `record_autoscaling_stats`, and Serve averages them
    over `look_back_period_s`. Serve's handles count the requests queued in front of replicas.

    Args:
        target_queued_tokens: prompt tokens that may be queued in an engine; None to ignore them.
        target_kv_use: share of the KV cache that running requests may use; None to ignore it.
    """

    max_ongoing_requests: int
    target_queued_tokens: float | None
    target_kv_use: float | None
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The number of replicas to run, and an empty state."""
        running, target = ctx.current_num_replicas, ctx.target_num_replicas
        if running == 0:
            # Replicas are starting. Serve itself makes the first step from zero: one replica, however long the queue.
            return target, {}
        ongoing = _recorded(ctx, "ongoing")
        tokens = _recorded(ctx, "queued_tokens") if self.target_queued_tokens else {}
        kv = _recorded(ctx, "kv_use") if self.target_kv_use else {}
        needed = max(self._for_requests(ctx, ongoing), self._for_tokens(tokens), self._for_kv(kv, ongoing))
        wanted = self._step(running, needed)
        if self._must_keep_all(ctx, ongoing, tokens):
            wanted = max(wanted, target)
        return wanted, {}

    def _for_requests(self, ctx: AutoscalingContext, ongoing: Recorded) -> float:
        """Serve's own rule: requests in progress and queued, divided by the target per replica."""
        # Before replicas have reported, Serve's own count.
        requests = sum(ongoing.values()) if ongoing else ctx.total_running_requests
        if self._is_any_full(ctx, requests):
            requests += ctx.total_queued_requests
        target: float = ctx.config.get_target_ongoing_requests()
        return requests / target

    def _is_any_full(self, ctx: AutoscalingContext, requests: float) -> bool:
        """Whether a replica is full now.

        Otherwise nothing is queued in front of replicas: the look-back period still shows the queue of a cold start,
        which the first replica has since received.
        """
        series = (ctx.raw_metrics or {}).get("ongoing", {})
        latest: list[float] = [points[-1].value for points in series.values() if points]
        return max(latest, default=requests / ctx.current_num_replicas) >= 0.9 * self.max_ongoing_requests

    def _for_tokens(self, tokens: Recorded) -> float:
        """Replicas for the prompts queued in engines.

        Queued prompts never move to another engine, so each engine asks for at most one replica more: a long queue must
        not start replica after replica that would stand idle beside it.
        """
        if not self.target_queued_tokens:
            return 0.0
        return sum(min(count / self.target_queued_tokens, 2.0) for count in tokens.values())

    def _for_kv(self, kv: Recorded, ongoing: Recorded) -> float:
        """Replicas for the KV cache in use. A request alone in its engine does not count."""
        if not self.target_kv_use:
            return 0.0
        return sum(use / self.target_kv_use for replica, use in kv.items() if ongoing.get(replica, 0.0) > 1.0)

    def _step(self, running: int, needed: float) -> int:
        """Move from the running towards the needed replicas by the scaling factors, never below the need."""
        enough = math.ceil(needed)
        if needed >= running:
            return math.ceil(running + self.upscaling_factor * (needed - running))
        stepped = max(math.ceil(running - self.downscaling_factor * (running - needed)), enough)
        # A small factor must not stall short of the target.
        return stepped - 1 if stepped == running > enough else stepped

    def _must_keep_all(self, ctx: AutoscalingContext, ongoing: Recorded, tokens: Recorded) -> bool:
        """Whether to keep all replicas: a replica has not reported yet, or prompts are queued in engines."""
        if len(ongoing) < ctx.current_num_replicas and (ongoing or ctx.total_num_requests):
            return True
        waiting = sum(tokens.values()) / ctx.current_num_replicas
        return bool(self.target_queued_tokens) and waiting > 0.1 * (self.target_queued_tokens or 0.0)


def _recorded(ctx: AutoscalingContext, name: str) -> Recorded:
    """A metric of each running replica, averaged over the look-back period."""
    recorded: Recorded = (ctx.aggregated_metrics or {}).get(name, {})
    return recorded


def serve_scaling(config: AutoscalingConfig, max_ongoing_requests: int) -> dict[str, Any]:
    """Ray Serve's autoscaling options for a model, with RayLLM's policy by default."""
    ours = {"target_queued_tokens", "target_kv_use"}
    scaling = config.model_dump(exclude_none=True, exclude=ours)
    scaling.setdefault("target_ongoing_requests", max(1.0, round(0.6 * max_ongoing_requests, 1)))
    if config.policy is None:
        policy_options = {
            "max_ongoing_requests": max_ongoing_requests,
            "target_queued_tokens": config.target_queued_tokens,
            "target_kv_use": config.target_kv_use,
            # Serve would start that many replicas from zero, whatever the policy returns.
            "upscaling_factor": scaling.pop("upscaling_factor", 1.0),
            "downscaling_factor": scaling.pop("downscaling_factor", 1.0),
        }
        policy = f"{__name__}:{EngineLoadPolicy.__name__}"
        scaling["policy"] = {"policy_function": policy, "policy_kwargs": policy_options}
    return scaling
