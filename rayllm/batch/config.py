"""What a processor does, in a few words of configuration."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from rayllm.config import ModelConfig
from rayllm.config.faults import config_error
from rayllm.errors import ConfigError

TaskType = Literal["generate", "embed", "classify", "score"]
Concurrency = int | tuple[int, int]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, **values: Any) -> None:
        """Raises ConfigError with every fault, one a line."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(type(self).__name__, type(self), error) from None


class Checkpoint(_Config):
    """Where a job notes what it has written, so that it goes on there when it is started again."""

    path: str
    """Folder for the notes: a path that all nodes see, `s3://…` or `gs://…`."""
    id_column: str
    """Column of the input that tells its rows apart; it has to stay in the output."""
    delete_on_success: bool = True
    """Empty the folder when the job is done, so that the next one begins anew."""


class ProcessorConfig(_Config):
    """What every processor can be told.

    Source: the batch API of RayLLM.
    """

    batch_size: int = Field(64, ge=1)
    """Rows that are done, or done again after a failure, together."""
    accelerator_type: str | None = None
    """Ray's name of the accelerator that each worker of the main stage runs on."""
    concurrency: Concurrency = 1
    """Workers of the main stage: a number, or the least and the most of them."""
    on_error: Literal["column", "raise"] = "column"
    """What happens to a row that fails: the reason goes into the column `__error__`, or the job stops with it."""
    preserve_order: bool = False
    """Keep the rows in the order of the input, at the price of waiting for slow ones."""
    checkpoint: Checkpoint | None = None
    """Let a job that was killed go on where it was, once it writes files."""
    show_progress: bool = True
    """Show rows and tokens a second, and the time left, on standard error."""

    @field_validator("concurrency", mode="wrap")
    @classmethod
    def _is_a_number_of_workers(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Concurrency:
        try:
            found: Concurrency = read(value)
            least, most = pool(found)
        except ValidationError:
            least = most = 0
        if not 1 <= least <= most:
            raise ValueError(f"{value!r} must be a number from 1, or the least and the most number of workers")
        return found


class VLLMProcessorConfig(ProcessorConfig):
    """Rows through a vLLM engine in each worker."""

    model: str | Path | ModelConfig
    """A model file (`.yaml`) as for serving, a hub id, a local folder, `s3://…` or `gs://…`."""
    task_type: TaskType | None = None
    """What the engine does: `generate` (the default), `embed`, `classify` or `score`."""
    engine_kwargs: dict[str, Any] = {}
    """vLLM's engine arguments, over those of a model file."""
    runtime_env: dict[str, Any] = {}
    """Ray runtime environment of the workers, over that of a model file."""
    is_chat: bool = True
    """Rows may hold `messages`, which become prompts by the model's `prompt_format` or chat template."""
    has_images: bool = False
    """Rows hold images, in their messages or in `images`; they are fetched and decoded before the engine."""
    need_tokenize: bool = True
    """Turn prompts into tokens before the engine; else the engine does it."""
    need_detokenize: bool = True
    """Turn tokens into text after the engine; else `generated_text` is there only where a stop is a text."""
    max_pending_requests: int | None = Field(None, ge=1)
    """Rows that an engine has in hand at once; null is a tenth more than it works on (`max_num_seqs`)."""
    sort_for_prefix: bool = True
    """Put rows with equal beginnings next to each other, block by block, so that the engine's prefix cache serves them.
    `preserve_order` switches it off."""
    max_engine_restarts: int = Field(3, ge=0)
    """How often a worker whose engine died is replaced, and its rows are done again, until the job stops."""


class RequestProcessorConfig(ProcessorConfig):
    """Rows that are requests in OpenAI's form, through an engine in each worker or through a running application."""

    model: str | Path | ModelConfig | None = None
    """The model, as for `VLLMProcessorConfig`; exactly one of this and `app_name`."""
    app_name: str | None = None
    """Name of the RayLLM application on this cluster whose models answer."""
    runtime_env: dict[str, Any] = {}
    """Ray runtime environment of the workers, over that of a model file."""
    max_pending_requests: int | None = Field(None, ge=1)
    """Requests that a worker has in hand at once; null is what an engine works on and a tenth more, or 64."""
    max_engine_restarts: int = Field(3, ge=0)
    """As for `VLLMProcessorConfig`."""

    @model_validator(mode="after")
    def _somebody_answers(self) -> RequestProcessorConfig:
        if (self.model is None) == (self.app_name is None):
            raise ValueError("give either `model` or `app_name`")
        if self.app_name is not None:
            for name in ("accelerator_type", "runtime_env", "max_engine_restarts"):
                if name in self.model_fields_set and getattr(self, name) is not None:
                    raise ValueError(f"`{name}` is for an engine in each worker, not for `app_name`; leave it out")
        return self


class HTTPRequestProcessorConfig(ProcessorConfig):
    """Rows as JSON requests to any endpoint."""

    url: str
    """The address, `http://…` or `https://…`."""
    header: str | dict[str, str] | None = None
    """Headers: `Name: value`, one a line, or a mapping. `$NAME`, `${NAME}` and `${env:NAME}` in values are read from
    the environment of the program that starts the job; secrets stay out of code and logs that way."""
    qps: float | None = Field(None, gt=0)
    """Most requests a second, over all workers; null is no limit."""
    max_concurrent_requests: int = Field(32, ge=1)
    """Requests that a worker has under way at once."""
    max_retries: int = Field(5, ge=0)
    """Further tries after 408, 429, a status from 500 or a broken connection, each after a longer wait; `Retry-After`
    is obeyed."""
    base_retry_wait_time_in_s: float = Field(1.0, gt=0)
    """Seconds before the first further try; doubled for each one after it, with some chance in it."""
    timeout_s: float = Field(600.0, gt=0)
    """Seconds that one try may take."""
    raise_for_status: bool = True
    """Take a status from 400 for a row that failed; else it is a result like others, told in `status_code`."""

    @model_validator(mode="after")
    def _has_no_engine(self) -> HTTPRequestProcessorConfig:
        if self.accelerator_type is not None:
            raise ValueError("`accelerator_type` is for engines; requests are sent by any node, so leave it out")
        return self

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not re.match(r"https?://[^/\s]+", value):
            raise ValueError(f"`{value}` must be an address that begins with http:// or https://")
        return value

    @field_validator("header")
    @classmethod
    def _are_headers(cls, value: str | dict[str, str] | None) -> str | dict[str, str] | None:
        for line in value.splitlines() if isinstance(value, str) else ():
            if line.strip() and not re.match(r"[\w!#$%&'*+.^`|~-]+\s*:", line):
                raise ValueError("must be `Name: value`, one a line")
        return value

    def headers(self) -> dict[str, str]:
        """The headers, references to the environment read. JSON is what is sent in any case.

        Raises:
            ConfigError: a variable is not set.
        """
        given = self.header or {}
        if isinstance(given, str):
            lines = [line.partition(":") for line in given.splitlines() if line.strip()]
            given = {name.strip(): value.strip() for name, _, value in lines}
        kept = {name: _read(value) for name, value in given.items() if name.lower() != "content-type"}
        return {**kept, "Content-Type": "application/json"}


def pool(concurrency: Concurrency) -> tuple[int, int]:
    """The least and the most number of workers."""
    if isinstance(concurrency, int):
        return concurrency, concurrency
    least, most = concurrency
    return least, most


def _read(text: str) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise ConfigError(f"header: the environment variable `{name}` is not set; export it before you start.")
        return os.environ[name]

    return re.sub(r"\$(?:\{(?:env:)?([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", value, text)
