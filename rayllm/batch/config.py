"""Configuration of processors."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from rayllm.access import ANYONE, Caller
from rayllm.config import ModelConfig
from rayllm.config.base import matching
from rayllm.config.faults import validating
from rayllm.core.errors import ConfigError
from rayllm.core.headers import PRIORITY
from rayllm.core.priority import Priority

TaskType = Literal["generate", "embed", "classify", "score"]
Concurrency = int | tuple[int, int]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError with every fault, one a line."""
        with validating(type(self).__name__, type(self)):
            super().__init__(**values)


class Checkpoint(_Config):
    """Where a job records the rows it has written, to resume after a restart."""

    path: str
    """Folder for the records: a path visible to all nodes, `s3://…` or `gs://…`."""
    id_column: str
    """Input column that identifies a row; the output must keep this column."""
    delete_on_success: bool = True
    """Empty the folder when the job is done, so that the next one starts over."""


class ProcessorConfig(_Config):
    """Options of every processor."""

    batch_size: int = Field(64, ge=1)
    """Rows that are processed, or repeated after a failure, together."""
    accelerator_type: str | None = None
    """Ray's name of the accelerator for each worker of the main stage."""
    concurrency: Concurrency = 1
    """Workers of the main stage: a number, or (minimum, maximum)."""
    on_error: Literal["column", "raise"] = "column"
    """What happens to a row that fails: `column` puts the reason into the column `__error__`, `raise` stops the job."""
    preserve_order: bool = False
    """Keep the rows in the order of the input, at the price of waiting for slow ones."""
    checkpoint: Checkpoint | None = None
    """Let a job that was killed resume, if its output is written to files."""
    show_progress: bool = True
    """Show rows and tokens per second, and the time left, on standard error."""

    @field_validator("concurrency", mode="wrap")
    @classmethod
    def _is_a_number_of_workers(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Concurrency:
        try:
            concurrency: Concurrency = validate(value)
            minimum, maximum = pool_size(concurrency)
        except ValidationError:
            minimum = maximum = 0
        if not 1 <= minimum <= maximum:
            raise ValueError(f"{value!r} must be a number of at least 1, or (minimum, maximum)")
        return concurrency


class VLLMProcessorConfig(ProcessorConfig):
    """Runs rows through a vLLM engine in each worker."""

    model: str | Path | ModelConfig
    """A model file (`.yaml`) as for serving, a hub id, a local folder, `s3://…` or `gs://…`."""
    task_type: TaskType | None = None
    """What the engine does: `generate` (the default), `embed`, `classify` or `score`."""
    engine_kwargs: dict[str, Any] = {}
    """vLLM's engine arguments, merged over the model file's."""
    runtime_env: dict[str, Any] = {}
    """Ray runtime environment of the workers, merged over the model file's."""
    is_chat: bool = True
    """Render rows' `messages` to prompts, with the model's `prompt_format` or chat template."""
    has_images: bool = False
    """Fetch and decode the images in rows' messages and in `images` before the engine."""
    need_tokenize: bool = True
    """Tokenize prompts before the engine; else the engine does it."""
    need_detokenize: bool = True
    """Detokenize after the engine; else only rows with a stop string have `generated_text`."""
    max_pending_requests: int | None = Field(None, ge=1)
    """Rows in an engine at once; null is 10 % more than it runs concurrently (`max_num_seqs`)."""
    sort_for_prefix: bool = True
    """Sort rows by prompt within each block, so that common prefixes hit the engine's prefix cache. `preserve_order`
    switches it off."""
    max_engine_restarts: int = Field(3, ge=0)
    """How often a worker whose engine died is replaced, and its rows are repeated, before the job stops."""


class RequestProcessorConfig(ProcessorConfig):
    """Runs OpenAI-style requests through an engine in each worker, or through a running application."""

    model: str | Path | ModelConfig | None = None
    """The model, as for `VLLMProcessorConfig`; give exactly one of this and `app_name`."""
    app_name: str | None = None
    """Name of the RayLLM application on this cluster to send requests to."""
    runtime_env: dict[str, Any] = {}
    """Ray runtime environment of the workers, merged over the model file's."""
    max_pending_requests: int | None = Field(None, ge=1)
    """Requests of a worker in flight at once; null is 10 % more than an engine runs concurrently, or 64."""
    max_engine_restarts: int = Field(3, ge=0)
    """As for `VLLMProcessorConfig`."""
    caller: Caller = Field(ANYONE, exclude=True)
    """Who sends the requests, for a service's batches: with `app_name` the name of its key counts, with `model` the
    models that it may use."""

    @model_validator(mode="after")
    def _has_one_target(self) -> Self:
        if (self.model is None) == (self.app_name is None):
            raise ValueError("give either `model` or `app_name`")
        if self.app_name is not None:
            for name in ("accelerator_type", "runtime_env", "max_engine_restarts"):
                if name in self.model_fields_set and getattr(self, name) is not None:
                    raise ValueError(f"`{name}` is for an engine in each worker, not for `app_name`; leave it out")
        return self


class HTTPRequestProcessorConfig(ProcessorConfig):
    """Sends rows as JSON requests to any HTTP endpoint."""

    url: Annotated[str, matching(r"https?://[^/\s]+.*", "must be a URL that begins with http:// or https://")]
    """URL of the endpoint, `http://…` or `https://…`."""
    header: str | dict[str, str] | None = None
    """Headers: lines of `Name: value`, or a mapping. `$NAME`, `${NAME}` and `${env:NAME}` in values are read from the
    environment of the program that starts the job, which keeps secrets out of code and logs."""
    qps: float | None = Field(None, gt=0)
    """Most requests per second, over all workers; null is no limit."""
    max_concurrent_requests: int = Field(32, ge=1)
    """Requests of a worker in flight at once."""
    max_retries: int = Field(5, ge=0)
    """Retries after 408, 429, a 5xx status or a connection error, with exponential backoff; `Retry-After` is
    honoured."""
    base_retry_wait_time_in_s: float = Field(1.0, gt=0)
    """Seconds before the first retry; doubled for each one after it, with jitter."""
    timeout_s: float = Field(600.0, gt=0)
    """Seconds that one attempt may take."""
    raise_for_status: bool = True
    """Treat a status of 400 or above as a failure of the row; else the response is a result, with `status_code`."""

    @model_validator(mode="after")
    def _has_no_engine(self) -> Self:
        if self.accelerator_type is not None:
            raise ValueError("`accelerator_type` is for engines; requests are sent by any node, so leave it out")
        return self

    @field_validator("header")
    @classmethod
    def _are_headers(cls, value: str | dict[str, str] | None) -> str | dict[str, str] | None:
        for line in value.splitlines() if isinstance(value, str) else ():
            if line.strip() and not re.match(r"[\w!#$%&'*+.^`|~-]+\s*:", line):
                raise ValueError("must be `Name: value`, one a line")
        return value

    def headers(self) -> dict[str, str]:
        """The headers, with environment variables expanded, the content type JSON, and by default the class `batch`.

        Raises:
            ConfigError: a variable is not set.
        """
        header = self.header or {}
        if isinstance(header, str):
            lines = [line.partition(":") for line in header.splitlines() if line.strip()]
            header = {name.strip(): value.strip() for name, _, value in lines}
        headers = {name: _expanded(value) for name, value in header.items() if name.lower() != "content-type"}
        return {PRIORITY: Priority.BATCH.label, **headers, "Content-Type": "application/json"}


def pool_size(concurrency: Concurrency) -> tuple[int, int]:
    """Minimum and maximum number of workers."""
    return (concurrency, concurrency) if isinstance(concurrency, int) else concurrency


def _expanded(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise ConfigError(f"header: the environment variable `{name}` is not set; export it before you start.")
        return os.environ[name]

    return re.sub(r"\$(?:\{(?:env:)?([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", value, text)
