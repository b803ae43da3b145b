"""The plan that `rayllm apply` prints before the deployment."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rayllm.cli.shared.application import IMPORT_PATH
from rayllm.config import AppConfig, load_app
from rayllm.serving.cluster.deployment.deployed import configuration, declared
from rayllm.serving.cluster.deployment.diff import Change, Effect, changes, different, router_keys

_SIGNS = {
    Effect.ADDED: "+",
    Effect.REMOVED: "-",
    Effect.ROLLED: "~",
    Effect.IN_PLACE: "=",
    Effect.UNTOUCHED: " ",
    Effect.UNKNOWN: "?",
}
# Models that are listed one by one although nothing happens to them.
_MAX_UNTOUCHED = 20


@dataclass(frozen=True)
class Step:
    """The change to one application: its models, and the changed keys of `args.router` and beside `args`."""

    name: str
    effect: Effect
    models: tuple[Change, ...] = ()
    router_keys: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The change to each application, and the configurations after the change."""

    steps: tuple[Step, ...]
    configs: tuple[AppConfig, ...]

    @property
    def names(self) -> list[str]:
        """Names of the applications after the change."""
        return [step.name for step in self.steps if step.effect is not Effect.REMOVED]

    def as_json(self) -> dict[str, Any]:
        return {"applications": [asdict(step) for step in self.steps]}

    def as_text(self) -> str:
        """The plan as text, with a line per application and model."""
        return "\n".join(line for step in self.steps for line in _lines(step))


def plan(running: Mapping[str, Mapping[str, Any]], target: Mapping[str, Any]) -> Plan:
    """Compare a serve config with inline models to Ray Serve's details of the running applications."""
    steps, configs, names = [], [], set()
    for application in target["applications"]:
        name = application.get("name", "default")
        names.add(name)
        details = running.get(name)
        if application.get("import_path") == IMPORT_PATH:
            config = load_app(application.get("args") or {})
            configs.append(config)
            steps.append(_ours(name, details, application, config))
        else:
            effect, keys = _compared(details, application)
            steps.append(Step(name, effect, keys=keys))
    for name, details in running.items():
        # Applications deployed with `serve.run` stay, as with `serve deploy`.
        if name not in names and declared(details):
            steps.append(Step(name, Effect.REMOVED, tuple(changes(configuration(details), None))))
    return Plan(tuple(steps), tuple(configs))


def _ours(name: str, details: Mapping[str, Any] | None, application: Mapping[str, Any], config: AppConfig) -> Step:
    before = configuration(details) if details else None
    running = frozenset(model.model_id for model in config.models) if details and before is None else frozenset()
    effect, keys = _compared(details, application, "args")
    models = changes(before, config, running)
    if any(key.partition(".")[0] == "runtime_env" for key in keys):
        # The environment applies to every process of the application.
        stays = (Effect.IN_PLACE, Effect.UNTOUCHED)
        models = [
            Change(each.model_id, Effect.ROLLED, (*each.keys, "runtime_env")) if each.effect in stays else each
            for each in models
        ]
    return Step(name, effect, tuple(models), router_keys(before, config), keys)


def _compared(
    details: Mapping[str, Any] | None, application: Mapping[str, Any], apart_from: str = ""
) -> tuple[Effect, tuple[str, ...]]:
    """The effect on an application, and the keys that differ, apart from those below `apart_from`."""
    if details is None:
        return Effect.ADDED, ()
    if (config := declared(details)) is None:
        return Effect.UNKNOWN, ()
    keys = different(config, application)
    effect = Effect.IN_PLACE if keys else Effect.UNTOUCHED
    return effect, tuple(key for key in keys if key.partition(".")[0] != apart_from)


def _lines(step: Step) -> Iterator[str]:
    yield f"application {step.name}: {_described(step.effect, step.keys)}"
    untouched = sum(change.effect is Effect.UNTOUCHED for change in step.models)
    for change in step.models:
        if change.effect is not Effect.UNTOUCHED or untouched <= _MAX_UNTOUCHED:
            yield f"  {_SIGNS[change.effect]} {change.model_id}: {_described(change.effect, change.keys)}"
    if untouched > _MAX_UNTOUCHED:
        yield f"    {untouched:,} models: {Effect.UNTOUCHED.value}"
    if step.router_keys:
        yield f"  {_SIGNS[Effect.IN_PLACE]} router: {', '.join(step.router_keys)}"


def _described(effect: Effect, keys: tuple[str, ...]) -> str:
    word = "changed" if effect is Effect.IN_PLACE and not keys else effect.value
    return f"{word} ({', '.join(keys)})" if keys else word
