"""Schema of deployments: replicas, placement and queues; and the accelerators that Ray knows."""

import logging
from functools import cache
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rayllm.config.base import Frozen
from rayllm.config.faults import did_you_mean
from rayllm.core.data_files import read_data

logger = logging.getLogger(__name__)


class AutoscalingConfig(Frozen):
    """Ray Serve's autoscaling options, and two more targets. Source: ray.serve.config.AutoscalingConfig, Ray 2.60.

    The target that needs most replicas decides. A replica is only removed if the others stay below every target.
    """

    min_replicas: int = Field(1, ge=0)
    """Fewest replicas; 0 lets the model scale to zero until a request comes."""
    initial_replicas: int | None = Field(None, ge=0)
    """Replicas at start; null is `min_replicas`."""
    max_replicas: int = Field(10, ge=1)
    """Most replicas."""
    target_ongoing_requests: float | None = Field(None, gt=0)
    """Ongoing requests per replica; null is 60 % of `max_ongoing_requests`."""
    target_queued_tokens: float | None = Field(16384, gt=0)
    """Prompt tokens queued in a replica's engine, on average; null ignores them. The default is two of vLLM's usual
    prefill steps, a second or two on a GPU."""
    target_kv_use: float | None = Field(0.9, gt=0, le=1)
    """Share of a replica's KV cache in use by running requests, on average; null ignores it. Cached prefixes of earlier
    prompts do not count. At 1, vLLM preempts running requests and recomputes them later."""
    metrics_interval_s: float = Field(10.0, gt=0)
    """Seconds between two measurements."""
    look_back_period_s: float = Field(30.0, gt=0)
    """Seconds over which measurements are averaged."""
    upscale_delay_s: float = Field(10.0, ge=0)
    """Seconds of high load before replicas are added."""
    downscale_delay_s: float = Field(300.0, ge=0)
    """Seconds of low load before replicas are removed."""
    downscale_to_zero_delay_s: float | None = Field(None, ge=0)
    """Seconds without a request before the last replica is removed; null is `downscale_delay_s`."""
    upscaling_factor: float | None = Field(None, gt=0)
    """Multiplies each step up, except that from zero, which is one replica."""
    downscaling_factor: float | None = Field(None, gt=0)
    """Multiplies each step down."""
    aggregation_function: Literal["mean", "max", "min"] | None = None
    """How measurements over the look-back period are aggregated."""
    policy: dict[str, Any] | None = None
    """A custom Ray Serve autoscaling policy instead of RayLLM's, which follows the targets above. The replicas' load is
    in `ctx.aggregated_metrics` (`ongoing`, `queued_tokens`, `kv_use`); Ray Serve itself counts queued requests."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas ({self.min_replicas}) is above max_replicas ({self.max_replicas})")
        if self.initial_replicas is not None and not self.min_replicas <= self.initial_replicas <= self.max_replicas:
            raise ValueError(f"initial_replicas ({self.initial_replicas}) is outside min_replicas..max_replicas")
        return self

    @model_validator(mode="after")
    def _policy_has_no_targets(self) -> Self:
        for key in sorted({"target_queued_tokens", "target_kv_use"} & self.model_fields_set):
            if self.policy is not None:
                raise ValueError(f"`{key}` is for RayLLM's policy and has no effect with `policy`; keep one")
        return self


class ActorOptions(Frozen):
    """Resources of the replica actor, in the first bundle of the placement group."""

    num_cpus: float = Field(1, ge=0)
    """CPUs."""
    resources: dict[str, float] = {}
    """Shares of custom resources."""
    runtime_env: dict[str, Any] = {}
    """Runtime environment of the actor; the top-level `runtime_env` is merged over it."""

    @model_validator(mode="before")
    @classmethod
    def _gpus_follow_from_parallelism(cls, value: Any) -> Any:
        if isinstance(value, dict) and "num_gpus" in value:
            raise ValueError("`num_gpus` follows from `tensor_parallelism`; for shares use `placement_group_config`")
        return value


class DeploymentConfig(Frozen):
    """Ray Serve's options of one model's deployment."""

    num_replicas: int | None = Field(None, ge=1)
    """A fixed number of replicas; excludes `autoscaling_config`. With neither, one."""
    autoscaling_config: AutoscalingConfig | None = None
    """Scale the number of replicas with the load."""
    max_ongoing_requests: int | None = Field(None, ge=1)
    """Requests that a replica handles at once; null is `engine_kwargs.max_num_seqs`, or vLLM's default for that: 1,024
    with an `accelerator_type` of 70 GiB or more, except A100, and else 256."""
    max_queued_requests: int | None = Field(None, ge=1)
    """Requests that each router queues for the model before it answers 503; null is 4 × `max_ongoing_requests`."""
    graceful_shutdown_timeout_s: float = Field(300.0, ge=0)
    """Seconds that a draining replica has to finish its requests."""
    graceful_shutdown_wait_loop_s: float = Field(0.5, gt=0)
    """Seconds between two checks whether a draining replica is idle, and before the first."""
    health_check_period_s: float = Field(10.0, gt=0)
    """Seconds between two health checks."""
    health_check_timeout_s: float = Field(30.0, gt=0)
    """Seconds that a health check may take."""
    max_constructor_retry_count: int = Field(3, ge=1)
    """How often a replica that fails to start is retried before the deployment counts as failed."""
    max_surge_percent: int | None = Field(None, ge=0, le=100)
    """Percentage of additional replicas during a rolling update, so that old ones serve until new ones are ready; needs
    the GPUs. Null stops old ones first, and requests wait."""
    rolling_update_percentage: float | None = Field(None, gt=0, le=1)
    """Share of the replicas that is replaced at a time; null is Ray Serve's, a fifth."""
    ray_actor_options: ActorOptions = ActorOptions()
    """Resources of the replica actor itself; its engine's GPUs follow from the parallelism."""
    logging_config: dict[str, Any] | None = None
    """Ray Serve's logging options."""

    @model_validator(mode="before")
    @classmethod
    def _placement_stands_elsewhere(cls, value: Any) -> Any:
        for key in ("placement_group_bundles", "placement_group_strategy"):
            if isinstance(value, dict) and key in value:
                raise ValueError(f"`{key}` does not belong here; use the top-level key `placement_group_config`")
        return value

    @model_validator(mode="after")
    def _one_way_to_scale(self) -> Self:
        if self.num_replicas is not None and self.autoscaling_config is not None:
            raise ValueError("`num_replicas` and `autoscaling_config` exclude each other; keep one")
        return self

    @property
    def fewest_replicas(self) -> int:
        """Number of replicas without load."""
        return self.autoscaling_config.min_replicas if self.autoscaling_config else self.num_replicas or 1

    @property
    def first_replicas(self) -> int:
        """Number of replicas at start."""
        initial = self.autoscaling_config.initial_replicas if self.autoscaling_config else None
        return self.fewest_replicas if initial is None else initial


class Parallelism(Frozen):
    """A degree of model parallelism."""

    degree: int = Field(1, ge=1)
    """Number of workers."""


Bundle = dict[str, float]
"""Resources of one bundle of a placement group, in Ray's names and amounts."""


class PlacementGroupConfig(Frozen):
    """Override of the placement group that RayLLM derives from the parallelism."""

    bundles: tuple[Bundle, ...] | None = None
    """All bundles in order: the replica actor's first, then the workers'."""
    bundle_per_worker: Bundle | None = None
    """Resources of each engine worker, such as `{GPU: 0.5}`. Of a share of a GPU, an engine takes 92 % of the memory,
    unless `engine_kwargs.gpu_memory_utilization` says how much of the whole GPU."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] | None = None
    """Ray's placement strategy; null is STRICT_PACK, or PACK with pipeline parallelism."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.bundles) == bool(self.bundle_per_worker):
            raise ValueError("give exactly one of `bundles` and `bundle_per_worker`")
        shares = {bundle["GPU"] for bundle in self.bundles or (self.bundle_per_worker or {},) if bundle.get("GPU")}
        if len(shares) > 1 or any(share > 1 for share in shares):
            raise ValueError("each worker takes one bundle: at most 1 GPU each, and all the same share")
        return self


@cache
def accelerator_types() -> tuple[str, ...]:
    """Accelerator types that Ray gives the nodes of common GPUs."""
    return tuple(read_data("rayllm.config", "ray_accelerators.json"))


@cache
def canonical_accelerator(value: str) -> str:
    """Ray's spelling of an accelerator type. Logs a suggestion for a type that is like another that Ray gives."""
    name = value.replace("_", "-")
    by_lower = {known.lower().replace("_", "-"): known for known in accelerator_types()}
    if name.lower() not in by_lower and (hint := did_you_mean(name, accelerator_types())):
        logger.warning("accelerator_type: `%s` may be no name that Ray gives a node%s", value, hint)
    return by_lower.get(name.lower(), name)
