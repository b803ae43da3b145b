"""Rewrite `deployment_config`, Ray Serve's options of a model, and write out defaults that cost money or surprise."""

from rayllm.config.app import Routing
from rayllm.config.legacy import Changes, Mapping, at, tables
from rayllm.config.scaling import ActorOptions, AutoscalingConfig, DeploymentConfig
from rayllm.deploy.conversion.formats import Format

_WHERE = "deployment_config"
NOT_CARRIED = tables()["deployment_options"]
"""Option of Ray Serve without an equivalent → why."""
_NO_SUCH = "RayLLM has no such option"
_ROUTERS: dict[str, Routing] = tables()["request_routers"]
_INTEGERS = ("min_replicas", "max_replicas", "initial_replicas", "max_ongoing_requests")
# Ray Serve's `num_replicas: auto`.
_AUTO = {"min_replicas": 1, "max_replicas": 100}
_CONTEXT = 2048
_MAX_REPLICAS = {Format.EARLY: 100, Format.RAY_SERVE_LLM: 1}


def carry_deployment(config: Mapping, is_listed: bool, changes: Changes) -> Routing | None:
    """Rewrite `deployment_config`; returns the requested routing, which is now an option of the serve config.

    `is_listed` says that a serve config that lists the model is converted too.
    """
    deployment = at(config, _WHERE)
    routing = _routing(deployment, is_listed, changes)
    _replicas(deployment, changes)
    options = at(deployment, "ray_actor_options")
    if isinstance(accelerator := options.get("accelerator_type"), str) and "accelerator_type" not in config:
        config["accelerator_type"] = accelerator
        del options["accelerator_type"]
        changes.renamed(f"{_WHERE}.ray_actor_options.accelerator_type", "accelerator_type")
    # These two stay, and are refused with a hint at the key that replaces them.
    known = {*DeploymentConfig.model_fields, "placement_group_bundles", "placement_group_strategy"}
    _keep(deployment, known, "", changes)
    _keep(at(deployment, "autoscaling_config"), set(AutoscalingConfig.model_fields), "autoscaling_config.", changes)
    _keep(options, set(ActorOptions.model_fields), "ray_actor_options.", changes)
    for holder in (deployment, at(deployment, "autoscaling_config")):
        for name in _INTEGERS:
            # An older `rayllm gen-config` wrote 1.0.
            if isinstance(value := holder.get(name), float) and value.is_integer():
                holder[name] = int(value)
    return routing


def _keep(holder: Mapping, known: set[str], where: str, changes: Changes) -> None:
    for name in list(holder):
        if name not in known:
            del holder[name]
            changes.dropped(f"{_WHERE}.{where}{name}", NOT_CARRIED.get(where + name, _NO_SUCH))


def _replicas(deployment: Mapping, changes: Changes) -> None:
    if deployment.get("num_replicas") == "auto":
        del deployment["num_replicas"]
        deployment["autoscaling_config"] = _AUTO | at(deployment, "autoscaling_config")
        changes.rewritten(f"{_WHERE}.num_replicas", "is `autoscaling_config` now, 1 to 100 replicas by default")
    if deployment.get("max_queued_requests") == -1:
        del deployment["max_queued_requests"]
        why = "-1 was no limit; a queue has one, by default 4 × `max_ongoing_requests`"
        changes.dropped(f"{_WHERE}.max_queued_requests", why)
    autoscaling = at(deployment, "autoscaling_config")
    if autoscaling.get("target_ongoing_requests") == 0:
        del autoscaling["target_ongoing_requests"]
        key = f"{_WHERE}.autoscaling_config.target_ongoing_requests"
        changes.dropped(key, "0 meant the default, which is 60 % of `max_ongoing_requests` now")


def _routing(deployment: Mapping, is_listed: bool, changes: Changes) -> Routing | None:
    router = at(deployment, "request_router_config")
    deployment.pop("request_router_config", None)
    if not router:
        return None
    name = str(router.get("request_router_class", "")).replace(":", ".").rpartition(".")[2]
    key = f"{_WHERE}.request_router_config"
    routing = _ROUTERS.get(name)
    if routing is None:
        changes.dropped(key, "`args.router.routing` has its own policies")
        return None
    if is_listed:
        changes.rewritten(f"{key}.request_router_class", f"is `{routing}` in `args.router.routing_by_model` now")
    else:
        why = f"set `args.router.routing: {routing}` in the serve config"
        changes.dropped(f"{key}.request_router_class", why)
    for other in router.keys() - {"request_router_class"}:
        changes.dropped(f"{key}.{other}", "RayLLM's routing has no such options")
    return routing


def write_defaults(config: Mapping, form: Format, changes: Changes) -> None:
    """Write out the defaults of `form` where today's differ."""
    if form is Format.EARLY:
        _context(config, changes)
        _autoscaling(config, changes)
    _most_replicas(config, form, changes)


def note_lost_refusal(raw: Mapping, changes: Changes) -> None:
    """Report a null `prompt_format` of RayLLM 1's raw file, which used to switch chat off and no longer does."""
    generation = at(raw, "generation_config") or at(raw, "generation")
    if "prompt_format" in generation and generation["prompt_format"] is None:
        why = "null switched chat off; now the model's own chat template is used, if it has one"
        changes.dropped("generation_config.prompt_format", why)


def _context(config: Mapping, changes: Changes) -> None:
    key = "max_request_context_length"
    if config.get(key) is None and "max_model_len" not in at(config, "engine_kwargs"):
        config[key] = _CONTEXT
        changes.added(key, f"is written as {_CONTEXT}, the old default; the default now is the model's maximum")


def _autoscaling(config: Mapping, changes: Changes) -> None:
    deployment = config.setdefault("deployment_config", {})
    if isinstance(deployment, dict) and not {"autoscaling_config", "num_replicas"} & deployment.keys():
        deployment["autoscaling_config"] = {"min_replicas": 1, "max_replicas": _MAX_REPLICAS[Format.EARLY]}
        changes.added("deployment_config.autoscaling_config", "is written as 1 to 100 replicas, the old default")
    autoscaling = at(config, "deployment_config", "autoscaling_config")
    if autoscaling.get("min_replicas") == 0 and "initial_replicas" not in autoscaling:
        autoscaling["initial_replicas"] = 1
        key = "deployment_config.autoscaling_config.initial_replicas"
        changes.added(key, "is written as 1, the old default; the default now is `min_replicas`")


def _most_replicas(config: Mapping, form: Format, changes: Changes) -> None:
    autoscaling, most = at(config, "deployment_config").get("autoscaling_config"), _MAX_REPLICAS[form]
    if not isinstance(autoscaling, dict) or "max_replicas" in autoscaling:
        return
    fewest = autoscaling.get("min_replicas", 1)
    if isinstance(fewest, int) and fewest <= most:
        autoscaling["max_replicas"] = most
        default = AutoscalingConfig.model_fields["max_replicas"].default
        how = f"is written as {most}, the old default; the default now is {default}"
        changes.added("deployment_config.autoscaling_config.max_replicas", how)
