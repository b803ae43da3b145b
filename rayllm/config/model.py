"""Schema of a model's YAML."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from rayllm.config.base import Frozen, matching
from rayllm.config.engine_arguments import check_parser, faults_in, vllm_names
from rayllm.config.faults import did_you_mean
from rayllm.config.scaling import DeploymentConfig, Parallelism, PlacementGroupConfig, canonical_accelerator
from rayllm.config.source import BucketSource, HubSource, Source, not_gguf
from rayllm.config.vllm_versions import unmet_requirement
from rayllm.prompt import PromptFormat

# vLLM's own default of `max_num_seqs`, which also is a replica's default of `max_ongoing_requests`: for GPUs of 70 GiB
# or more, except A100, and for all others.
_LARGE_GPU = re.compile(r"H\d|G?B[23]\d|GH\d|GB10|RTX-PRO-6000")
_LARGE_GPU_SEQS, DEFAULT_MAX_NUM_SEQS = 1024, 256

ALIASES = {
    "max_model_len": "max_request_context_length",
    "tensor_parallel_size": "tensor_parallelism",
    "pipeline_parallel_size": "pipeline_parallelism",
}
"""Engine argument → the model's key for the same thing."""

_MODEL_ID = matching(
    r"(?!.*\.\.)[A-Za-z0-9][\w.:/@+-]*",
    "must be letters, digits and `. _ - : / @ +`, and begin with a letter or digit",
)
_ADAPTER = matching(
    r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}",
    "must be letters, digits and `. _ - @ +`, and begin with a letter or digit; write `a--b` for `a/b`",
)
_ADAPTERS = matching(
    r"(s3|gs)://[^/]+.*|hf://[\w.-]+/?|(?!\w+://).+",
    "must be a folder, s3://bucket/…, gs://bucket/… or hf://organisation",
)


class ModelLoadingConfig(Frozen):
    """The model's name and source."""

    model_id: Annotated[str, Field(min_length=1), _MODEL_ID]
    """Public name, which clients write in `model`."""
    model_source: Source | None = None
    """Source of the weights; null is `model_id` on the HuggingFace hub."""
    tokenizer_source: Source | None = None
    """Source of the tokenizer; null is that of the weights."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    allow_pickle_weights: bool = False
    """Accept a source with only pickled weights (`.bin`, `.pt`), which can run code when loaded."""

    @model_validator(mode="after")
    def _is_on_the_hub(self) -> Self:
        if self.model_source is None:
            not_gguf(self.model_id)
        if self.revision and self.model_source is not None and not isinstance(self.model_source, HubSource):
            raise ValueError("`revision` is for models on the HuggingFace hub; leave it out")
        return self


class GenerationConfig(Frozen):
    """Prompt format, stops and default sampling values."""

    prompt_format: PromptFormat | None = None
    """How messages are rendered to a prompt; null is the model's own chat template."""
    stopping_sequences: tuple[str, ...] = ()
    """Stop strings, added to every request's own."""
    stopping_tokens: tuple[int, ...] = ()
    """Stop token ids, added to every request's own."""
    generate_kwargs: dict[str, Any] = {}
    """Defaults of request fields such as `temperature` or `max_tokens`."""

    @field_validator("stopping_sequences")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty stopping sequence would stop every request at once")
        return value

    @field_validator("generate_kwargs")
    @classmethod
    def _not_the_request_itself(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("model", "messages", "prompt", "stream", "stream_options", "input"):
            if name in value:
                raise ValueError(f"`{name}` belongs to each request; only sampling values are allowed here")
        if "stop" in value or "stop_token_ids" in value:
            raise ValueError("use `stopping_sequences` and `stopping_tokens` instead of `stop` and `stop_token_ids`")
        for name in value.keys() - (fields := vllm_names()["request"]):
            raise ValueError(f"`{name}` is not a field of a request{did_you_mean(name, fields).rstrip('?')}")
        return value


class LoraModule(Frozen):
    """An adapter with its own source."""

    name: Annotated[str, _ADAPTER]
    """Its name: clients use `<model_id>:<name>`, or the name alone."""
    path: str = Field(min_length=1)
    """A local folder, `s3://…`, `gs://…`, or a repository of the hub."""


def _module(value: Any) -> Any:
    """vLLM's short form, `name=path`, as a mapping."""
    if isinstance(value, str):
        name, _, path = value.partition("=")
        return {"name": name, "path": path}
    return value


class LoraConfig(Frozen):
    """LoRA adapters, loaded on demand."""

    dynamic_lora_loading_path: Annotated[str, _ADAPTERS] | None = None
    """Folder of adapters: a path, `s3://…`, `gs://…` or `hf://organisation`."""
    lora_modules: tuple[Annotated[LoraModule, BeforeValidator(_module)], ...] = ()
    """Adapters with their own sources, loaded when a replica starts; or `name=path`, as in vLLM."""
    max_num_adapters_per_replica: int = Field(16, ge=1)
    """Adapters that a replica keeps loaded."""
    download_timeout_s: float | None = Field(30.0, gt=0)
    """Seconds that the download of an adapter may take; null is no limit."""
    max_download_tries: int = Field(3, ge=1)
    """Attempts to download an adapter."""

    @field_validator("lora_modules")
    @classmethod
    def _names_differ(cls, value: tuple[LoraModule, ...]) -> tuple[LoraModule, ...]:
        names = [module.name for module in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"`{name}` is given twice; every adapter needs its own name")
        return value

    @property
    def paths(self) -> list[str]:
        """All sources of adapters."""
        root = [self.dynamic_lora_loading_path] if self.dynamic_lora_loading_path else []
        return [*root, *(module.path for module in self.lora_modules)]


class ToolCalling(Frozen):
    """How tool calls are parsed from the model's output."""

    parser: str | None = None
    """Name of a vLLM tool parser, such as `hermes` or `llama3_json`."""
    plugin: str | None = None
    """Python file that registers a custom parser."""
    auto: bool = True
    """Let the model decide to call a tool (`tool_choice: auto`)."""
    chat_template: str | None = None
    """Chat template for requests with tools: a path, text, or the name of a bundled one (docs/tools.md)."""

    @model_validator(mode="after")
    def _auto_needs_a_parser(self) -> Self:
        if self.auto and not self.parser:
            raise ValueError("`auto: true` needs a `parser`; name one, or set `auto: false`")
        if self.plugin is None:
            check_parser("tool_parser", self.parser)
        return self


class GuidedDecoding(Frozen):
    """Custom guided-decoding backends."""

    backends_dir: str | None = None
    """Folder with one folder per backend."""
    default_backend: str | None = None
    """Backend for requests that name none."""
    trust_custom_code: bool = False
    """Run the Python code in those folders."""


def _engine_name(value: Any) -> Any:
    return "vLLM" if value in ("VLLM", "VLLMEngine", "vllm") else value


class ModelConfig(Frozen):
    """A model: its source, prompts, engine and deployment."""

    model_loading_config: ModelLoadingConfig
    """Name and source."""
    generation_config: GenerationConfig = GenerationConfig()
    """Prompt format, stops and default sampling values."""
    chat_template: str | None = None
    """Jinja chat template instead of the model's own: a path, text, or the name of a bundled one (docs/tools.md);
    excludes `prompt_format`."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables for the chat template; those of a request win."""
    llm_engine: Annotated[Literal["vLLM"], BeforeValidator(_engine_name)] = "vLLM"
    """The engine."""
    vllm_version: str | None = None
    """The versions of vLLM that the model needs, such as `>=0.30`; null takes all that RayLLM does."""
    engine_kwargs: dict[str, Any] = {}
    """vLLM's engine arguments, by their Python names."""
    log_engine_metrics: bool = False
    """Export vLLM's metrics by Ray's exporter as well, as `ray_vllm_…`; `GET /metrics` has them in any case."""
    max_request_context_length: int | None = Field(None, ge=1)
    """Most tokens of prompt and completion together; the same as `engine_kwargs.max_model_len`."""
    max_tokens: Literal["clip", "refuse"] | None = None
    """What happens to requests for more tokens than the prompt leaves; null clips `/v1/messages`, refuses others."""
    accelerator_type: Annotated[str, AfterValidator(canonical_accelerator)] | None = None
    """Ray's name of the accelerator, such as `A100-80G`; null is any GPU, or the CPU with vLLM's CPU build."""
    tensor_parallelism: Parallelism = Parallelism()
    """The same as `engine_kwargs.tensor_parallel_size`."""
    pipeline_parallelism: Parallelism = Parallelism()
    """The same as `engine_kwargs.pipeline_parallel_size`."""
    placement_group_config: PlacementGroupConfig | None = None
    """Override of the placement group."""
    lora_config: LoraConfig | None = None
    """LoRA adapters."""
    tool_calling: ToolCalling | None = None
    """Tool calls."""
    reasoning_parser: str | None = None
    """Name of a vLLM reasoning parser, such as `deepseek_r1` or `qwen3`."""
    guided_decoding: GuidedDecoding | None = None
    """Custom guided decoding."""
    allowed_request_fields: tuple[Literal["ec_transfer_params", "kv_transfer_params", "priority"], ...] = ()
    """Request fields that are refused with 400 unless listed here: `priority` lets a request overtake others,
    `kv_transfer_params` and `ec_transfer_params` name hosts to fetch from."""
    task: Literal["generate", "embed", "score", "classify"] | None = None
    """The model's task; null lets vLLM infer it."""
    deployment_config: DeploymentConfig = DeploymentConfig()
    """Replicas, queues and health."""
    runtime_env: dict[str, Any] = {}
    """Ray runtime environment of the replicas, merged with the application's; `${env:NAME}` is expanded at deploy
    time."""

    @field_validator("runtime_env")
    @classmethod
    def _check_variables(cls, value: dict[str, Any]) -> dict[str, Any]:
        variables = value.get("env_vars", {})
        if not isinstance(variables, dict) or not all(isinstance(text, str) for text in variables.values()):
            raise ValueError("`env_vars` must map names to strings; put numbers in quotes")
        if parallel := [name for name in variables if name.startswith("VLLM_DP_")]:
            raise ValueError(f"`{parallel[0]}`: RayLLM runs replicas instead; use deployment_config.num_replicas")
        return value

    @field_validator("vllm_version")
    @classmethod
    def _is_installed(cls, value: str | None) -> str | None:
        if value is not None and (fault := unmet_requirement(value)):
            raise ValueError(f"{fault}; install that version of vLLM")
        return value

    @field_validator("engine_kwargs")
    @classmethod
    def _known_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        if faults := faults_in(value):
            raise ValueError("; ".join(faults))
        if "lora_modules" in value:
            raise ValueError("`lora_modules` belongs in `lora_config`; move it there")
        return value

    @model_validator(mode="after")
    def _say_it_once(self) -> Self:
        for argument, key in ALIASES.items():
            value, other = getattr(self, key), self.engine_kwargs.get(argument)
            if key not in self.model_fields_set or value is None or other is None:
                continue
            ours, value = (f"{key}.degree", value.degree) if isinstance(value, Parallelism) else (key, value)
            if other != value:
                raise ValueError(f"`{ours}` ({value}) and `engine_kwargs.{argument}` ({other}) differ; keep one")
        if "reasoning_parser_plugin" not in self.engine_kwargs:
            try:
                check_parser("reasoning_parser", self.reasoning_parser)
            except ValueError as error:
                raise ValueError(f"reasoning_parser: {error}") from None
        workers = self.tensor_parallel_size * self.pipeline_parallel_size
        bundles = self.placement_group_config.bundles if self.placement_group_config else None
        gpus = sum(1 for bundle in bundles or () if bundle.get("GPU"))
        if bundles and 0 < gpus < workers:
            raise ValueError(
                f"placement_group_config.bundles: {workers} workers need as many bundles with a GPU, not {gpus}"
            )
        if workers > 1 and self.gpu_share < 1:
            raise ValueError("placement_group_config: workers of one engine cannot share a GPU; give each `GPU: 1`")
        if self.streamed_from and isinstance(self.source, BucketSource):
            for key in sorted(self.source.model_fields_set - {"bucket_uri"}):
                raise ValueError(f"model_source.{key}: vLLM's streamer does not support it; leave one of them out")
        if self.chat_template is not None and self.generation_config.prompt_format is not None:
            raise ValueError("`chat_template` and `prompt_format` exclude each other; keep one")
        if self.generation_config.prompt_format and "chat_template_content_format" in self.engine_kwargs:
            raise ValueError("a `prompt_format` takes strings; leave `engine_kwargs.chat_template_content_format` out")
        if self.log_engine_metrics and self.engine_kwargs.get("disable_log_stats"):
            raise ValueError("`log_engine_metrics` needs the metrics that `engine_kwargs.disable_log_stats` turns off")
        if self.guided_decoding and self.task not in (None, "generate"):
            raise ValueError("`guided_decoding` is for models that generate; leave it out")
        if self.generation_config.prompt_format and self.tool_calling and self.tool_calling.chat_template:
            raise ValueError("`tool_calling.chat_template` and `prompt_format` exclude each other; keep one")
        return self

    @property
    def model_id(self) -> str:
        return self.model_loading_config.model_id

    @property
    def streamed_from(self) -> str | None:
        """The bucket URI from which vLLM streams the weights; None unless vLLM is configured to stream."""
        streams = str(self.engine_kwargs.get("load_format", "")).startswith("runai_streamer")
        return self.source.bucket_uri if streams and isinstance(self.source, BucketSource) else None

    @property
    def source(self) -> Source:
        """Source of the weights, including the default."""
        loading = self.model_loading_config
        source = loading.model_source or HubSource(repo_id=loading.model_id)
        if loading.revision and isinstance(source, HubSource):
            return HubSource(repo_id=source.repo_id, revision=loading.revision)
        return source

    @property
    def tensor_parallel_size(self) -> int:
        """Workers that share each layer."""
        return int(self.engine_kwargs.get("tensor_parallel_size", self.tensor_parallelism.degree))

    @property
    def pipeline_parallel_size(self) -> int:
        """Groups of layers, which different workers have."""
        return int(self.engine_kwargs.get("pipeline_parallel_size", self.pipeline_parallelism.degree))

    @property
    def gpu_share(self) -> float:
        """The share of a GPU that each worker has, where workers run on GPUs."""
        group = self.placement_group_config
        bundles = (group.bundles or (group.bundle_per_worker or {},)) if group else ()
        return next((bundle["GPU"] for bundle in bundles if bundle.get("GPU")), 1.0)

    @property
    def max_model_len(self) -> int | None:
        """Most tokens of prompt and completion together; None if the file sets no limit."""
        limit = self.engine_kwargs.get("max_model_len")
        # vLLM also takes strings such as "32k", which only it can parse.
        return self.max_request_context_length or (limit if isinstance(limit, int) else None)

    @property
    def max_ongoing_requests(self) -> int:
        """Requests that a replica handles at once."""
        is_large = self.accelerator_type and _LARGE_GPU.match(self.accelerator_type)
        default = _LARGE_GPU_SEQS if is_large else DEFAULT_MAX_NUM_SEQS
        return self.deployment_config.max_ongoing_requests or int(self.engine_kwargs.get("max_num_seqs", default))
