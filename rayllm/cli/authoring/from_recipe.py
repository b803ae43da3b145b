"""`rayllm gen-config --recipe`: a model's file from a recipe of vLLM's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rayllm.authoring.answers import Answers
from rayllm.authoring.profile import ModelProfile
from rayllm.authoring.recipes.flags import FileKeys
from rayllm.authoring.recipes.placement import GB, Choice
from rayllm.authoring.recipes.schema import Recipe, load_recipe
from rayllm.authoring.recipes.selection import Selection, select
from rayllm.cli.authoring.interview import NO_ACCELERATOR, Interview, Options, find_accelerator
from rayllm.cli.authoring.local_gpus import local_gpus
from rayllm.cli.terminal.user_input import UserInput, say
from rayllm.cluster.environment import has_cpu_engine
from rayllm.config.vllm_versions import installed_version
from rayllm.errors import ConfigError
from rayllm.sizing.fit import Fit

# Longest context in tokens, where neither the user nor the recipe gives one and memory is not computed: such models
# take up to a million, which few GPUs hold.
_TOKENS = 32768


@dataclass(frozen=True)
class RecipeOptions:
    """Options of the command line that are for recipes."""

    path: Path
    variant: str | None = None
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def decide(options: RecipeOptions, others: Options) -> tuple[ModelProfile, Answers, Fit | None, list[str]]:
    """Decide how to serve the model of a recipe.

    Args:
        options: the recipe and what to take of it.
        others: the options of every model.

    Returns:
        The model, the decisions, how it fits on the GPUs if that is computed, and lines for the heading of its file.

    Raises:
        ConfigError: the recipe cannot be read, needs a newer vLLM, or does not fit.
        SourceError: the model cannot be read.
    """
    recipe, name = load_recipe(options.path), str(options.path)
    vllm = installed_version()
    selection = select(recipe, _choice(options, others), str(vllm) if vllm else None, name)
    keys, notes = selection.keys, list(selection.notes)
    notes += _missing_files(keys, name)
    chosen = _options(others, selection, keys)
    interview = Interview(chosen, UserInput(False), keys)
    profile = interview.profile()
    _complete(keys, recipe, profile)
    answers, fit = interview.answers(profile)
    if answers.context is None and not answers.on_cpu:
        context = min(recipe.model.context_length or _TOKENS, _TOKENS)
        answers = replace(answers, context=context)
        notes.append(f"a context of {context:,} tokens: --max-model-len sets another")
    for note in notes:
        say(f"{note[0].upper()}{note[1:]}.")
    return profile, answers, fit, _heading(recipe, selection, fit)


def _choice(options: RecipeOptions, others: Options) -> Choice:
    name = others.accelerator
    if name is None:
        name = next((gpu.kind.name for gpu in local_gpus() if gpu.kind), None)
    accelerator, gpu = find_accelerator(name) if name else (None, None)
    return Choice(
        accelerator=accelerator,
        gpu=gpu,
        on_cpu=name is not None and accelerator is None and has_cpu_engine(),
        variant=options.variant,
        tensor_parallel=others.tensor_parallel,
        pipeline_parallel=others.pipeline_parallel,
        features=options.features,
        without=options.without,
    )


def _options(others: Options, selection: Selection, keys: FileKeys) -> Options:
    place = selection.place
    context, sequences = keys.pop("max_request_context_length"), keys.pop("engine_kwargs", "max_num_seqs")
    return replace(
        others,
        model_id=selection.model_id,
        accelerator=place.accelerator or NO_ACCELERATOR,
        tensor_parallel=place.tensor_parallel,
        pipeline_parallel=place.pipeline_parallel,
        context=others.context or context,
        sequences=others.sequences or sequences,
    )


def _complete(keys: FileKeys, recipe: Recipe, profile: ModelProfile) -> None:
    """Add the parsers of the model's family that the recipe has no feature for; drop what says nothing."""
    tools = keys.keys.get("tool_calling", {})
    if "parser" not in tools:
        keys.pop("tool_calling")
    elif tools.get("auto") is True:
        keys.pop("tool_calling", "auto")
    if profile.family is None or profile.task:
        return
    if "tool_calling" not in recipe.features and profile.family.tool_parser:
        keys.keys.setdefault("tool_calling", {"parser": profile.family.tool_parser})
    if "reasoning" not in recipe.features and profile.family.reasoning_parser:
        keys.keys.setdefault("reasoning_parser", profile.family.reasoning_parser)


def _missing_files(keys: FileKeys, name: str) -> list[str]:
    """Make the paths of files absolute; returns a sentence for what is left out because it is not here.

    Raises:
        ConfigError: a parser's file is not here.
    """
    left_out = []
    template = keys.keys.get("chat_template")
    if isinstance(template, str):
        if Path(template).is_file():
            keys.keys["chat_template"] = str(Path(template).absolute())
        else:
            keys.pop("chat_template")
            left_out.append(
                f"the chat template {template} is not here, so the model's own is used: "
                "to use the recipe's, save it and set `chat_template` to its path"
            )
    for path in (("tool_calling", "plugin"), ("engine_kwargs", "reasoning_parser_plugin")):
        plugin = keys.keys.get(path[0], {}).get(path[1])
        if plugin is None:
            continue
        if not Path(plugin).is_file():
            raise ConfigError(
                f"{name}: {path[1]}: {plugin} is not in this folder.\n"
                "hint: download it from the model's repository, or leave its feature out with --without-feature."
            )
        keys.keys[path[0]][path[1]] = str(Path(plugin).absolute())
    return left_out


def _heading(recipe: Recipe, selection: Selection, fit: Fit | None) -> list[str]:
    place = selection.place
    lines = [f"From vLLM's recipe for {recipe.model.model_id}, variant `{place.variant}`."]
    if fit is None and place.gpu:
        lines.append(
            f"The recipe asks for {selection.memory_gb:,.0f} GB; "
            f"{place.gpu.name} × {place.gpus} have {place.memory / GB:,.0f} GB."
        )
    return lines
