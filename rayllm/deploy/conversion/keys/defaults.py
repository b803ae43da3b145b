"""Write out older defaults where the current ones differ in ways that cost money or surprise."""

from __future__ import annotations

from rayllm.config.legacy import Changes
from rayllm.config.legacy.nested import Mapping, at
from rayllm.config.scaling import AutoscalingConfig
from rayllm.deploy.conversion.formats import Format

_CONTEXT = 2048
_MOST_REPLICAS = {Format.EARLY: 100, Format.RAY_SERVE_LLM: 1}


def write_defaults(config: Mapping, form: Format, changes: Changes) -> None:
    """Write out the defaults of `form` where today's differ.

    Args:
        config: the model, in the current schema.
        form: an older format.
        changes: records each.
    """
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
        deployment["autoscaling_config"] = {"min_replicas": 1, "max_replicas": _MOST_REPLICAS[Format.EARLY]}
        changes.added("deployment_config.autoscaling_config", "is written as 1 to 100 replicas, the old default")
    autoscaling = at(config, "deployment_config", "autoscaling_config")
    if autoscaling.get("min_replicas") == 0 and "initial_replicas" not in autoscaling:
        autoscaling["initial_replicas"] = 1
        key = "deployment_config.autoscaling_config.initial_replicas"
        changes.added(key, "is written as 1, the old default; the default now is `min_replicas`")


def _most_replicas(config: Mapping, form: Format, changes: Changes) -> None:
    autoscaling, most = at(config, "deployment_config").get("autoscaling_config"), _MOST_REPLICAS[form]
    if not isinstance(autoscaling, dict) or "max_replicas" in autoscaling:
        return
    fewest = autoscaling.get("min_replicas", 1)
    if isinstance(fewest, int) and fewest <= most:
        autoscaling["max_replicas"] = most
        default = AutoscalingConfig.model_fields["max_replicas"].default
        how = f"is written as {most}, the old default; the default now is {default}"
        changes.added("deployment_config.autoscaling_config.max_replicas", how)
