"""The user's decisions about a model to be served, and the YAML files that express them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from rayllm.config import BucketSource, HubSource, ModelConfig
from rayllm.config.load import model_from
from rayllm.config.yaml import dump_yaml
from rayllm.plan.authoring.profile import ModelProfile
from rayllm.plan.engine_arguments import engine_settings
from rayllm.plan.fit import EngineSettings, Fit
from rayllm.plan.gpus import GIB
from rayllm.plan.measure import Measured

_TYPICAL_TOKENS = 2048
_SERVE_HEADING = """# {}, for this machine only. To serve others set 0.0.0.0, behind something that checks who calls.
# The routers listen themselves. On several nodes, or beside other applications, leave the first line out.
"""
_Section = dict[str, Any]


@dataclass(frozen=True)
class Lora:
    """LoRA adapters.

    `path` is their catalog: a path, `s3://…`, `gs://…` or `hf://organisation`; at most `slots` are loaded at once, of
    ranks up to `rank`.
    """

    path: str
    slots: int
    rank: int


@dataclass(frozen=True)
class Answers:
    """All decisions.

    Attributes:
        accelerator: Ray's accelerator type; None is any GPU, or the CPU.
        context: most tokens of prompt and completion together; None is vLLM's default.
        sequences: most sequences in a batch; None is vLLM's default.
        scaling: keys of `autoscaling_config`.
    """

    accelerator: str | None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context: int | None = None
    sequences: int | None = None
    lora: Lora | None = None
    scaling: Mapping[str, int] | None = None
    on_cpu: bool = False

    def engine_settings(self, measured: Measured) -> EngineSettings:
        """The decisions that affect memory."""
        return replace(
            engine_settings({}, measured.architecture, measured.element_bytes),
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            sequences=self.sequences,
            draft_tokens=measured.draft_layers,
            adapter_slots=self.lora.slots if self.lora else 0,
            adapter_rank=self.lora.rank if self.lora else 0,
        )


def render_model(profile: ModelProfile, answers: Answers, room: Fit | None) -> str:
    """Render the model's file."""
    heading = "".join(f"# {line}\n" for line in _heading(profile, answers, room))
    return heading + "\n".join(dump_yaml(section) for section in _sections(profile, answers) if section)


def model_config(profile: ModelProfile, answers: Answers) -> ModelConfig:
    """Build the configuration that `render_model` writes; raises ConfigError for contradictory decisions."""
    keys = {key: value for section in _sections(profile, answers) for key, value in section.items()}
    return model_from(keys, profile.model.model_id, (Path.cwd(),))


def _sections(profile: ModelProfile, answers: Answers) -> Iterator[_Section]:
    yield _loading(profile)
    yield from _prompting(profile)
    yield from _hardware(profile, answers)
    yield from _running(profile, answers)


def render_serve_config(profile: ModelProfile, model_file: PurePath) -> str:
    """Render the serve config of one model, whose file is given relative to the serve config's folder."""
    config = {
        "proxy_location": "Disabled",
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": "rayllm",
                "route_prefix": "/",
                "import_path": "rayllm:app",
                "args": {"llm_configs": [f"./{model_file.as_posix()}"]},
            }
        ],
    }
    return _SERVE_HEADING.format(profile.model.model_id) + dump_yaml(config)


def _heading(profile: ModelProfile, answers: Answers, room: Fit | None) -> Iterator[str]:
    family = f": {profile.family.name}" if profile.family else ""
    yield f"{profile.model.model_id}{family}. Written by `rayllm gen-config`."
    if room is None:
        yield "Its memory was not estimated" + (f": {profile.unmeasured}" if profile.unmeasured else ".")
        return
    sizes = (room.weights, room.adapters, room.activations, room.overhead)
    weights, adapters, activations, overhead = (f"{size / GIB:.1f}" for size in sizes)
    with_adapters = f"adapters {adapters}, " if room.adapters else ""
    yield f"GPU memory: vLLM takes {room.settings.utilization:.0%} of {room.gpu.memory_gib:.1f} GiB. On each GPU are"
    yield f"weights {weights} GiB, {with_adapters}activations {activations}, overhead {overhead};"
    tokens = answers.context or profile.context or _TYPICAL_TOKENS
    usual = min(tokens, _TYPICAL_TOKENS)
    yield f"{room.cache / GIB:.1f} ± {room.uncertainty / GIB:.1f} GiB are left for requests: at once"
    yield f"{room.sequences_of(tokens):.1f} of {tokens:,} tokens, or {room.sequences_of(usual):.0f} of {usual:,}."


def _loading(profile: ModelProfile) -> _Section:
    model = profile.model
    source, keys = model.source, {"model_id": model.model_id}
    if isinstance(source, HubSource):
        keys["model_source"] = source.repo_id
        if source.revision:
            keys["revision"] = source.revision
    else:
        keys["model_source"] = source.bucket_uri if isinstance(source, BucketSource) else source.path
    return {"model_loading_config": keys}


def _prompting(profile: ModelProfile) -> Iterator[_Section]:
    if profile.task:
        yield {"task": profile.task}
        return
    family = profile.family
    generation: dict[str, Any] = {}
    if family and family.prompt_format:
        generation["prompt_format"] = dict(family.prompt_format)
    if stops := list(dict.fromkeys([*(family.stopping_sequences if family else ()), *profile.stops])):
        generation["stopping_sequences"] = stops
    if generation:
        yield {"generation_config": generation}
    if family and family.tool_parser:
        yield {"tool_calling": {"parser": family.tool_parser}}
    if family and family.reasoning_parser:
        yield {"reasoning_parser": family.reasoning_parser}


def _hardware(profile: ModelProfile, answers: Answers) -> Iterator[_Section]:
    keys: dict[str, Any] = {"accelerator_type": answers.accelerator} if answers.accelerator else {}
    if answers.tensor_parallel > 1:
        keys["tensor_parallelism"] = {"degree": answers.tensor_parallel}
    if answers.pipeline_parallel > 1:
        keys["pipeline_parallelism"] = {"degree": answers.pipeline_parallel}
    yield keys
    engine = {}
    if answers.sequences:
        engine["max_num_seqs"] = answers.sequences
    if answers.lora:
        engine["max_lora_rank"] = answers.lora.rank
    length = {"max_request_context_length": answers.context} if answers.context else {}
    yield length | ({"engine_kwargs": engine} if engine else {})


def _running(profile: ModelProfile, answers: Answers) -> Iterator[_Section]:
    if lora := answers.lora:
        yield {"lora_config": {"dynamic_lora_loading_path": lora.path, "max_num_adapters_per_replica": lora.slots}}
    if answers.scaling:
        yield {"deployment_config": {"autoscaling_config": dict(answers.scaling)}}
    if profile.info.is_gated:
        yield {"runtime_env": {"env_vars": {"HF_TOKEN": "${env:HF_TOKEN}"}}}
