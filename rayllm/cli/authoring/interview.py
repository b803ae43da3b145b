"""The decisions of `rayllm gen-config`: said by an option, asked, or advised."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import click

from rayllm.authoring import advice
from rayllm.authoring.answers import Answers, Lora, Scaling
from rayllm.authoring.profile import ModelProfile, profile_by_name, profile_model
from rayllm.cli.authoring.fit_tables import introduction, left, on_every_gpu
from rayllm.cli.authoring.local_gpus import local_gpus
from rayllm.cli.terminal.user_input import UserInput, say
from rayllm.cluster.environment import has_cpu_engine
from rayllm.config import ModelConfig, named_model
from rayllm.config.model import canonical_accelerator
from rayllm.errors import ConfigError, SourceError
from rayllm.sizing.fit import Fit
from rayllm.sizing.gpus import GPUS, Gpu, find_gpu
from rayllm.sizing.known_models import known_models
from rayllm.sources import UnreachableError
from rayllm.sources.errors import DeniedError

NO_ACCELERATOR = "none"
"""Any GPU, or the CPU."""

_PLACES = "s3://…, gs://… or a folder"
# Few replicas to begin with: more cost money, and the file says where to change them.
_REPLICAS = (1, 4)
_SLOTS, _RANK = 16, 32
# What a model may take of the memory of a machine without GPUs.
_CPU_SHARE = 0.5


@dataclass(frozen=True)
class Options:
    """What the command line says; None where it says nothing."""

    model_id: str | None = None
    model_source: str | None = None
    accelerator: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context: int | None = None
    sequences: int | None = None
    enable_lora: bool | None = None
    lora_path: str | None = None
    slots: int | None = None
    rank: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    target: int | None = None


class Interview:
    """Finds out what is to be served, and how.

    Args:
        options: what the command line says.
        asker: of the rest.
    """

    def __init__(self, options: Options, asker: UserInput) -> None:
        self._options = options
        self._asker = asker

    def profile(self) -> ModelProfile:
        """The model, looked at where it lies.

        Raises:
            SourceError, ConfigError: it cannot be read, and nobody is there to name another.
            click.UsageError: no model is named.
        """
        if self._asker.is_asking and self._options.model_id is None:
            say(f"Known by heart, beside any other model: {', '.join(known_models())}.\n")
        while True:
            try:
                return self._looked_at(self._model())
            except (SourceError, ConfigError) as error:
                if not self._asker.is_asking or self._options.model_id is not None:
                    raise
                say(f"{error.message}\n")

    def answers(self, profile: ModelProfile) -> tuple[Answers, Fit | None]:
        """What is decided, and what the GPUs leave room for; None where that is not known.

        Raises:
            ConfigError: the model does not fit, or answers contradict each other.
        """
        accelerator, gpu = self._accelerator(profile)
        answers = Answers(accelerator, lora=self._lora_of_options(), on_cpu=not accelerator and _runs_on_cpu(profile))
        answers = self._split(profile, gpu, answers)
        answers = replace(answers, lora=answers.lora or self._lora_if_wanted(profile))
        answers = self._lengths(profile, gpu, answers)
        room = _room(profile, gpu, answers)
        if room and answers.context:
            say(left(room, answers.context))
        return replace(answers, scaling=self._scaling(answers.on_cpu)), room

    def _model(self) -> ModelConfig:
        options = self._options
        name = options.model_id or self._asker.text(f"Model: a hub id, {_PLACES}", None, "--model-id")
        if name.endswith((".yaml", ".yml")):
            raise ConfigError(f"{name} is a model's file already.\nhint: name a model: a hub id, {_PLACES}.")
        place = options.model_source
        question = "Are its weights in a bucket or folder of yours, and not on the HuggingFace hub?"
        if options.model_id is None and place is None and _is_hub_id(name) and self._asker.agrees(question):
            place = self._asker.text(f"Their address: {_PLACES}", None, "--model-source")
        return named_model(place, name) if place else named_model(name)

    def _looked_at(self, model: ModelConfig) -> ModelProfile:
        try:
            profile = profile_model(model)
        except (UnreachableError, DeniedError) as error:
            # Whoever says what it runs on may do without being told; the replicas may have the credentials.
            if self._options.accelerator is None:
                hint = "--accelerator-type and --tensor-parallelism say what would be worked out."
                raise SourceError(f"{error.message.rstrip('.')}.\nhint: {hint}") from None
            say(f"{error.message.rstrip('.')}; nothing is checked.")
            return profile_by_name(model, "the place of its weights could not be reached")
        _introduce(profile)
        return profile

    def _accelerator(self, profile: ModelProfile) -> tuple[str | None, Gpu | None]:
        """Ray's accelerator type, and the GPU that it is, where its memory is known."""
        options = self._options
        if self._asker.is_asking and options.accelerator is None and profile.measured:
            say(on_every_gpu(profile.measured, advice.required_tokens(profile.measured, options.context)) + "\n")
        names = ", ".join(gpu.name for gpu in GPUS)
        question = f"GPU type: {names}, or {NO_ACCELERATOR} for any and for CPUs"
        name = options.accelerator
        if name is None:
            name = self._asker.text(question, self._advised_accelerator(profile), "--accelerator-type")
        if name.lower() in (NO_ACCELERATOR, "any", "cpu"):
            return None, None
        accelerator = _accelerator_type(name)
        known = {gpu.name: gpu for gpu in GPUS} | {"A100": find_gpu("A100-40G")}
        if accelerator not in known:
            say(f"The memory of {accelerator} is not known, so nothing is worked out for it.")
        return accelerator, known.get(accelerator)

    def _advised_accelerator(self, profile: ModelProfile) -> str | None:
        if here := next((card.kind for card in local_gpus() if card.kind), None):
            return here.name
        if _runs_on_cpu(profile):
            return NO_ACCELERATOR
        if profile.measured is None:
            return None
        tokens = advice.required_tokens(profile.measured, self._options.context)
        gpu = advice.recommended_gpu(profile.measured, Answers(None).engine_settings, tokens)
        return gpu.name if gpu else None

    def _split(self, profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> Answers:
        options = self._options
        advised = self._advised_split(profile, gpu, answers)
        stages = options.pipeline_parallel or (1 if options.tensor_parallel else advised[1])
        while True:
            question = "Tensor parallelism: GPUs that share each layer"
            tensor = options.tensor_parallel or self._asker.number(question, advised[0])
            answers = replace(answers, tensor_parallel=tensor, pipeline_parallel=stages)
            try:
                advice.check_split(profile, answers.engine_settings)
                _room(profile, gpu, answers)
                return answers
            except ConfigError as error:
                if not self._asker.is_asking or options.tensor_parallel:
                    raise
                say(error.message)

    def _advised_split(self, profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> tuple[int, int]:
        if self._options.tensor_parallel or not (profile.measured and gpu):
            return 1, 1
        tokens = advice.required_tokens(profile.measured, self._options.context)
        found = advice.recommended_split(profile.measured, gpu, answers.engine_settings, tokens)
        if found is None:
            hint = "`rayllm plan` shows which GPUs hold it."
            raise ConfigError(f"{gpu.name}: 32 of them do not hold {tokens:,} tokens of the model.\nhint: {hint}")
        return found

    def _lora_if_wanted(self, profile: ModelProfile) -> Lora | None:
        if self._options.enable_lora is not None or profile.task or not self._asker.agrees("Serve LoRA adapters?"):
            return None
        return self._lora()

    def _lora_of_options(self) -> Lora | None:
        return self._lora() if self._options.enable_lora else None

    def _lora(self) -> Lora:
        options, asker = self._options, self._asker
        question = "Folder of adapters: s3://…, gs://…, hf://organisation or a path"
        path = options.lora_path or asker.text(question, None, "--lora-path")
        slots = options.slots or asker.number("Adapters in the engine at once", _SLOTS)
        rank = options.rank or asker.number("Their largest rank", _RANK)
        return Lora(path if "://" in path else str(Path(path).expanduser().absolute()), slots, rank)

    def _lengths(self, profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> Answers:
        """The longest context, and how many sequences at once."""
        options, most, room = self._options, profile.context, _room(profile, gpu, answers)
        if options.context and most and options.context > most:
            raise ConfigError(f"--max-model-len: {options.context:,} is more than the {most:,} tokens of the model.")
        if most is None and not self._asker.is_asking:
            return replace(answers, context=options.context, sequences=options.sequences)
        advised = advice.recommended_context(room, most) if room and most else min(most or advice.TOKENS, advice.TOKENS)
        question = "Longest context: tokens of prompt and answer together"
        context = options.context or self._asker.number(question, advised, most)
        if room:
            advice.check_context(room, context)
        sequences = options.sequences or (advice.recommended_sequences(room, context) if room else None)
        return replace(answers, context=context, sequences=sequences)

    def _scaling(self, on_cpu: bool) -> Scaling | None:
        options, asker = self._options, self._asker
        fewest, most, target = options.min_replicas, options.max_replicas, options.target
        if (fewest, most, target) == (None, None, None) and asker.agrees("Say how it scales?"):
            fewest = asker.number("Fewest replicas; 0 lets it sleep", _REPLICAS[0], least=0)
            most = asker.number("Most replicas", max(fewest, _REPLICAS[1]), least=max(fewest, 1))
            target = asker.number("Requests that each should have in hand; 0: 60 % of what it takes", 0, least=0)
        if on_cpu and (fewest, most, target) == (None, None, None):
            return None  # a second replica would only take the first one's cores
        fewest = _REPLICAS[0] if fewest is None else fewest
        most = max(fewest, _REPLICAS[1]) if most is None else most
        if fewest > most:
            raise click.UsageError(f"--min-replicas {fewest} is more than --max-replicas {most}.")
        return Scaling(fewest, most, target or None)


def _accelerator_type(name: str) -> str:
    try:
        found = canonical_accelerator(name)
    except ValueError:
        found = find_gpu(name, "--accelerator-type").name
    if found.startswith("A100-"):
        # Ray itself tells all A100s alike.
        resources = "'{\"accelerator_type:" + found + "\": 1}'"
        say(f"Ray does not know {found} by itself: start its nodes with --resources {resources}.")
    return found


def _room(profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> Fit | None:
    return advice.checked_fit(profile.measured, gpu, answers.engine_settings) if profile.measured and gpu else None


def _is_hub_id(name: str) -> bool:
    return not name.startswith(("/", ".", "~", "s3://", "gs://")) and not Path(name).is_dir()


def _runs_on_cpu(profile: ModelProfile) -> bool:
    """Whether this machine's engine is vLLM's CPU build, and the model is no burden to it."""
    if profile.measured is None or not has_cpu_engine():
        return False
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return profile.measured.weights.bytes < _CPU_SHARE * memory


def _introduce(profile: ModelProfile) -> None:
    """What was found of the model."""
    family = profile.family
    if profile.was_inspected:
        say(f"Verified that {profile.model.model_id} can be read.")
    else:
        say("The hub cannot be reached, so access is not checked.")
    if profile.measured:
        say(introduction(profile.model.model_id, profile.measured))
    else:
        say(f"Its memory is not worked out: {profile.unmeasured}")
    if family:
        say(f"It is prompted and read as {family.name}.")
    if profile.was_inspected and not profile.template and not profile.task and not (family and family.prompt_format):
        say("It has no chat template: write a prompt_format into its file, or it only completes texts.")
    if profile.is_gated:
        say("It is gated: who serves it needs HF_TOKEN of an account with access. The file refers to that variable.")
