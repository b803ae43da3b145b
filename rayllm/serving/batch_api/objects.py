"""OpenAI's file and batch objects, and their ids."""

import re
import secrets
import time
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rayllm.batch.files.jsonl import Counts, Fault
from rayllm.core.endpoints import IN_BATCHES
from rayllm.core.errors import RequestError

FILE = "file-"
BATCH = "batch_"
CLIENTS_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""Purposes that clients may give a file; only `batch` has an effect."""
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_WINDOW_S = 30 * 86400
_INTERNAL = {"output_lifetime_s", "tenant", "key", "models"}
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512


def new_id(prefix: str) -> str:
    """A unique id: the time in milliseconds, then 80 random bits."""
    return f"{prefix}{time.time_ns() // 10**6:012x}{secrets.token_hex(10)}"


def is_id(prefix: str, text: str) -> bool:
    """Whether `text` is an id made by `new_id`; no other text may become part of a path."""
    return re.fullmatch(f"{prefix}[0-9a-f]{{32}}", text) is not None


def created_at(name: str) -> float:
    """When an id was created, in seconds since the epoch."""
    return int(name[-32:-20], 16) / 1000


class _Fields(BaseModel):
    """Fields that a client sends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, fields: dict[str, Any], name: str = "{}") -> Self:
        """Validate fields; `name` is how errors name one of them. Raises RequestError for the first invalid field."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)[0]
        field = name.format(".".join(map(str, details["loc"])))[:200]
        if details["type"] == "extra_forbidden":
            raise RequestError(f"`{field}` is not a known field; use {', '.join(cls.model_fields)}.", field)
        if details["type"] == "missing":
            raise RequestError(f"`{field}` is required.", field)
        message = details["msg"].removeprefix("Value error, ")
        raise RequestError(f"`{field}`: {message[0].lower() + message[1:]}.", field)


class Expiry(_Fields):
    """`expires_after` of a file. Source: https://platform.openai.com/docs/api-reference/files/create"""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 86400)


class File(BaseModel):
    """OpenAI's file object, and the tenant it belongs to (empty for none).

    Source: https://platform.openai.com/docs/api-reference/files/object
    """

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | None = None
    tenant: str = ""

    def public(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"tenant"})


class BatchRequest(_Fields):
    """The body of `POST /v1/batches`. Source: https://platform.openai.com/docs/api-reference/batch/create"""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None

    @property
    def window_s(self) -> int:
        """`completion_window` in seconds."""
        return int(self.completion_window[:-1]) * _SECONDS[self.completion_window[-1]]

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, value: str) -> str:
        if value not in IN_BATCHES:
            raise ValueError(f"must be one of {', '.join(IN_BATCHES)}")
        return value

    @field_validator("completion_window")
    @classmethod
    def _check_window(cls, value: str) -> str:
        details = re.fullmatch(r"([1-9]\d{0,6})([smhd])", value, re.ASCII)
        if details is None or int(details[1]) * _SECONDS[details[2]] > _MAX_WINDOW_S:
            raise ValueError("must be a time such as `24h`, `90m`, `30s` or `7d`, at most 30 days")
        return value

    @field_validator("metadata")
    @classmethod
    def _check_metadata(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        pairs = value or {}
        if len(pairs) > _MAX_PAIRS:
            raise ValueError(f"may have {_MAX_PAIRS} pairs, not {len(pairs)}")
        for key, text in pairs.items():
            if len(key) > _MAX_KEY:
                raise ValueError(f"keys may have {_MAX_KEY} characters; `{key[:20]}…` has {len(key)}")
            if len(text) > _MAX_VALUE:
                raise ValueError(f"values may have {_MAX_VALUE} characters; that of `{key}` has {len(text)}")
        return value


class Errors(BaseModel):
    """The errors of a batch."""

    object: Literal["list"] = "list"
    data: list[Fault]


class Batch(BaseModel):
    """OpenAI's batch object, with internal fields. Times are in seconds since the epoch.

    Source: https://platform.openai.com/docs/api-reference/batch/object
    """

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: Errors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = Field(default_factory=Counts)
    metadata: dict[str, str] | None = None
    output_lifetime_s: int | None = None
    """Seconds until the output files expire; None keeps them until they are deleted."""
    tenant: str = ""
    """Who the batch and its files belong to; empty without keys."""
    key: str = ""
    """Name of the key that the requests are sent with; empty without keys."""
    models: tuple[str, ...] | None = None
    """Models that the sender could use when the batch was created; None is all."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def public(self) -> dict[str, Any]:
        # The ids of the output files are assigned before the files exist.
        early = () if self.has_ended else ("output_file_id", "error_file_id")
        return self.model_dump(mode="json", exclude=_INTERNAL) | dict.fromkeys(early)
