"""The decisions of `rayllm gen-config`: from an option, a prompt, or a computed default."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from rayllm.cli.shared.fit_tables import gib, introduction, on_every_gpu, summary
from rayllm.cli.shared.machine import known_gpus, local_gpus
from rayllm.cluster.environment import has_cpu_engine
from rayllm.config import ModelConfig, named_model
from rayllm.config.scaling import accelerator_types, canonical_accelerator
from rayllm.core.errors import ClusterError, ConfigError, SourceError
from rayllm.plan.authoring import advice
from rayllm.plan.authoring.profile import ModelProfile, profile_by_name, profile_model
from rayllm.plan.authoring.rendering import Answers, Lora, model_config
from rayllm.plan.cpu import memory_bytes, this_cpu
from rayllm.plan.fit import Fit
from rayllm.plan.gpus import GPUS, Gpu, find_gpu
from rayllm.plan.known_models import known_models
from rayllm.sources import UnreachableError
from rayllm.sources.errors import DeniedError

NO_ACCELERATOR = "none"
"""Any GPU, or the CPU."""
_SOURCES = "s3://…, gs://… or a folder"
# Few replicas by default: more cost money, and are easy to change in the file.
_MIN_REPLICAS, _MAX_REPLICAS = 1, 4
_SLOTS, _RANK = 16, 32
# Most memory of a machine without GPUs for a model's weights.
_MAX_MEMORY_SHARE = 0.5


def say(text: str) -> None:
    click.echo(text, err=True)


@dataclass(frozen=True)
class Options:
    """Options of the command line; None if not given."""

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
    """Decides which model to serve, and how: by options, then prompts if `is_interactive`, then defaults."""

    def __init__(self, options: Options, is_interactive: bool) -> None:
        self._options = options
        self._is_interactive = is_interactive

    def profile(self) -> ModelProfile:
        """Choose and inspect the model.

        Raises:
            SourceError, ConfigError: the model cannot be read, and the user cannot be prompted for another.
            click.UsageError: no model is named.
        """
        if self._is_interactive and self._options.model_id is None:
            say(f"Known offline, beside any other model: {', '.join(known_models())}.\n")
        while True:
            try:
                return self._inspected(self._model())
            except (SourceError, ConfigError) as error:
                if not self._is_interactive or self._options.model_id is not None:
                    raise
                say(f"{error.message}\n")

    def answers(self, profile: ModelProfile) -> tuple[Answers, Fit | None]:
        """Decide how to serve the model; returns the decisions, and the fit on the GPUs, if known."""
        accelerator, gpu = self._accelerator(profile)
        on_cpu = not accelerator and _runs_on_cpu(profile)
        answers = Answers(accelerator, lora=self._lora() if self._options.enable_lora else None, on_cpu=on_cpu)
        answers = self._parallelism(profile, gpu, answers)
        if self._options.enable_lora is None and not profile.task and self._confirm("Serve LoRA adapters?"):
            answers = replace(answers, lora=self._lora())
        answers = self._lengths(profile, gpu, answers)
        fit = _fit(profile, gpu, answers)
        if fit and answers.context:
            say(summary(fit, answers.context))
        return replace(answers, scaling=self._scaling(answers.on_cpu)), fit

    def _model(self) -> ModelConfig:
        options = self._options
        name = options.model_id or self._text(f"Model: a hub id, {_SOURCES}", None, "--model-id")
        if name.endswith((".yaml", ".yml")):
            raise ConfigError(f"{name} is already a model file.\nhint: name a model: a hub id, {_SOURCES}.")
        source = options.model_source
        prompt = "Are its weights in your own bucket or folder, and not on the HuggingFace hub?"
        is_hub_id = not name.startswith(("/", ".", "~", "s3://", "gs://")) and not Path(name).is_dir()
        if options.model_id is None and source is None and is_hub_id and self._confirm(prompt):
            source = self._text(f"Their source: {_SOURCES}", None, "--model-source")
        return named_model(source, name) if source else named_model(name)

    def _inspected(self, model: ModelConfig) -> ModelProfile:
        try:
            profile = profile_model(model)
        except (UnreachableError, DeniedError) as error:
            # With an accelerator no defaults are needed, and the replicas may have the credentials.
            if self._options.accelerator is None:
                hint = "--accelerator-type and --tensor-parallelism replace what would be computed."
                raise SourceError(f"{error.message.rstrip('.')}.\nhint: {hint}") from None
            say(f"{error.message.rstrip('.')}; nothing is checked.")
            return profile_by_name(model, "the source of its weights cannot be reached")
        _introduce(profile)
        return profile

    def _accelerator(self, profile: ModelProfile) -> tuple[str | None, Gpu | None]:
        """Ray's accelerator type, and its GPU if the memory is known."""
        options = self._options
        if self._is_interactive and options.accelerator is None and profile.measured:
            say(on_every_gpu(profile.measured, advice.required_tokens(profile.measured, options.context)) + "\n")
        names = ", ".join(gpu.name for gpu in GPUS)
        prompt = f"GPU type: {names}, or {NO_ACCELERATOR} for any and for CPUs"
        name = options.accelerator
        if name is None:
            name = self._text(prompt, self._default_accelerator(profile), "--accelerator-type")
        return _find_accelerator(name)

    def _default_accelerator(self, profile: ModelProfile) -> str | None:
        if local := next((gpu.kind for gpu in local_gpus() if gpu.kind), None):
            return local.name
        if _runs_on_cpu(profile):
            return NO_ACCELERATOR
        if profile.measured is None:
            return None
        tokens = advice.required_tokens(profile.measured, self._options.context)
        settings = Answers(None).engine_settings(profile.measured)
        gpu = advice.recommended_gpu(profile.measured, settings, tokens)
        return gpu.name if gpu else None

    def _parallelism(self, profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> Answers:
        options = self._options
        default = self._default_parallelism(profile, gpu, answers)
        pipeline = options.pipeline_parallel or (1 if options.tensor_parallel else default[1])
        while True:
            prompt = "Tensor parallelism: GPUs that share each layer"
            tensor = options.tensor_parallel or self._number(prompt, default[0])
            answers = replace(answers, tensor_parallel=tensor, pipeline_parallel=pipeline)
            try:
                advice.check_split(profile, tensor, pipeline)
                _fit(profile, gpu, answers)
                return answers
            except ConfigError as error:
                if not self._is_interactive or options.tensor_parallel:
                    raise
                say(error.message)

    def _default_parallelism(self, profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> tuple[int, int]:
        if self._options.tensor_parallel or not (profile.measured and gpu):
            return 1, 1
        tokens = advice.required_tokens(profile.measured, self._options.context)
        settings = answers.engine_settings(profile.measured)
        parallelism = advice.recommended_split(profile.measured, gpu, settings, tokens)
        if parallelism is None:
            hint = "`rayllm plan` shows which GPUs it fits on."
            raise ConfigError(f"{gpu.name}: 32 of them do not hold {tokens:,} tokens of the model.\nhint: {hint}")
        return parallelism

    def _lora(self) -> Lora:
        options = self._options
        prompt = "Folder of adapters: s3://…, gs://…, hf://organisation or a path"
        path = options.lora_path or self._text(prompt, None, "--lora-path")
        slots = options.slots or self._number("Adapters in the engine at once", _SLOTS)
        rank = options.rank or self._number("Their largest rank", _RANK)
        return Lora(path if "://" in path else str(Path(path).expanduser().absolute()), slots, rank)

    def _lengths(self, profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> Answers:
        """Decide the longest context, and the number of concurrent sequences."""
        options, maximum, fit = self._options, profile.context, _fit(profile, gpu, answers)
        if options.context and maximum and options.context > maximum:
            raise ConfigError(f"--max-model-len: {options.context:,} is more than the {maximum:,} tokens of the model.")
        if profile.measured is None and not answers.on_cpu and not self._is_interactive:
            return replace(answers, context=options.context, sequences=options.sequences)
        usual = min(maximum or advice.TOKENS, advice.TOKENS)
        default = advice.recommended_context(fit, maximum) if fit and maximum else usual
        prompt = "Longest context: tokens of prompt and completion together"
        context = options.context or self._number(prompt, default, maximum)
        if fit:
            advice.check_context(fit, context)
        sequences = options.sequences or (advice.recommended_sequences(fit, context) if fit else None)
        return replace(answers, context=context, sequences=sequences)

    def _scaling(self, on_cpu: bool) -> dict[str, int] | None:
        options = self._options
        minimum, maximum, target = options.min_replicas, options.max_replicas, options.target
        if (minimum, maximum, target) == (None, None, None) and self._confirm("Configure autoscaling?"):
            minimum = self._number("Fewest replicas; 0 scales to zero", _MIN_REPLICAS, minimum=0)
            maximum = self._number("Most replicas", max(minimum, _MAX_REPLICAS), minimum=max(minimum, 1))
            target = self._number("Ongoing requests per replica; 0: 60 % of its maximum", 0, minimum=0)
        if on_cpu and (minimum, maximum, target) == (None, None, None):
            return None  # a second replica would only take the first one's cores
        minimum = _MIN_REPLICAS if minimum is None else minimum
        maximum = max(minimum, _MAX_REPLICAS) if maximum is None else maximum
        if minimum > maximum:
            raise click.UsageError(f"--min-replicas {minimum} is more than --max-replicas {maximum}.")
        targets = {"target_ongoing_requests": target} if target else {}
        return {"min_replicas": minimum, "max_replicas": maximum, **targets}

    def _text(self, prompt: str, default: str | None, option: str) -> str:
        if self._is_interactive:
            return str(click.prompt(prompt, default=default, err=True))
        if default is None:
            raise click.UsageError(f"{option} is required with --non-interactive: it has no default here.")
        return default

    def _number(self, prompt: str, default: int, maximum: int | None = None, minimum: int = 1) -> int:
        if not self._is_interactive:
            return default
        return int(click.prompt(prompt, default=default, type=click.IntRange(minimum, maximum), err=True))

    def _confirm(self, prompt: str) -> bool:
        return self._is_interactive and click.confirm(prompt, default=False, err=True)


def _find_accelerator(name: str) -> tuple[str | None, Gpu | None]:
    """Look up Ray's type of an accelerator, and its GPU.

    Both are None for any GPU and for the CPU; the GPU alone is None if its memory is not known.
    """
    if name.lower() in (NO_ACCELERATOR, "any", "cpu"):
        return None, None
    accelerator = canonical_accelerator(name)
    if accelerator not in accelerator_types():
        with suppress(ConfigError):
            accelerator = find_gpu(name).name
    if accelerator.startswith("A100-"):
        # Ray labels all A100s alike.
        resources = "'{\"accelerator_type:" + accelerator + "\": 1}'"
        say(f"Ray does not detect {accelerator} itself: start its nodes with --resources {resources}.")
    gpus = {gpu.name: gpu for gpu in known_gpus()} | {"A100": find_gpu("A100-40G")}
    if accelerator not in gpus:
        say(f"The memory of {accelerator} is not known, so nothing is computed for it.")
    return accelerator, gpus.get(accelerator)


def _fit(profile: ModelProfile, gpu: Gpu | None, answers: Answers) -> Fit | None:
    if profile.measured is None or gpu is None:
        return None
    return advice.checked_fit(profile.measured, gpu, answers.engine_settings(profile.measured))


def _runs_on_cpu(profile: ModelProfile) -> bool:
    """Whether this machine has vLLM's CPU build, and enough memory for the model."""
    size = profile.cpu_bytes(this_cpu())
    return size is not None and has_cpu_engine() and size < _MAX_MEMORY_SHARE * memory_bytes()


def _introduce(profile: ModelProfile) -> None:
    """Print what was detected of the model."""
    family = profile.family
    if profile.was_inspected:
        say(f"Verified that {profile.model.model_id} can be read.")
    else:
        say("The hub cannot be reached, so access is not checked.")
    if profile.measured:
        say(introduction(profile.model.model_id, profile.measured))
    else:
        say(f"Its memory is not computed: {profile.unmeasured}")
    if family:
        say(f"Its prompts and tool calls have the format of {family.name}.")
    if profile.was_inspected and not profile.template and not profile.task and not (family and family.prompt_format):
        say("It has no chat template: add a prompt_format to its file, or it only completes text.")
    if profile.info.is_gated:
        say("It is gated: serving it needs HF_TOKEN of an account with access. The file refers to that variable.")


def single_model(name: str, tensor_parallel: int | None, context: int | None) -> ModelConfig:
    """Compute a configuration for a model on this machine: a hub id, a folder or a bucket URI.

    Raises:
        SourceError, ConfigError: the model cannot be read, or does not fit.
        ClusterError: this machine has no GPU, and too little memory.
    """
    gpu = next((each.kind for each in local_gpus() if each.kind), None)
    accelerator = gpu.name if gpu else NO_ACCELERATOR
    options = Options(model_id=name, accelerator=accelerator, tensor_parallel=tensor_parallel, context=context)
    interview = Interview(options, is_interactive=False)
    profile = interview.profile()
    answers, _ = interview.answers(profile)
    size_on_cpu = profile.cpu_bytes(this_cpu())
    if has_cpu_engine() and not answers.on_cpu and size_on_cpu:
        size, memory = gib(size_on_cpu), gib(memory_bytes())
        raise ClusterError(
            f"{name}: its weights, {size} GiB, are more than half of this machine's memory, {memory} GiB.\n"
            "hint: `rayllm plan` shows which GPUs it fits on."
        )
    # Any GPU of this machine will do, and there is one replica.
    return model_config(profile, replace(answers, accelerator=None, scaling=None))
