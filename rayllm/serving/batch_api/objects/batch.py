"""A batch: what is asked for, and how far it is."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from rayllm.endpoints import ENDPOINTS
from rayllm.errors import RequestError
from rayllm.serving.batch_api.objects.expiry import Expiry

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})

_ENDPOINTS = tuple(endpoint.path for endpoint in ENDPOINTS if not endpoint.is_form)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S = 30 * 86400
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512


class BatchRequest(BaseModel):
    """What a client asks for. Source: https://platform.openai.com/docs/api-reference/batch/create"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Self:
        """Read a request's body.

        Raises:
            RequestError: a field is wrong.
        """
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise _refusal(error) from None

    @property
    def window_s(self) -> int:
        """`completion_window` in seconds."""
        return int(self.completion_window[:-1]) * _SECONDS[self.completion_window[-1]]

    @field_validator("endpoint")
    @classmethod
    def _is_one_of_ours(cls, value: str) -> str:
        if value not in _ENDPOINTS:
            raise ValueError(f"must be one of {', '.join(_ENDPOINTS)}")
        return value

    @field_validator("completion_window")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        found = re.fullmatch(r"([1-9]\d{0,6})([smhd])", value, re.ASCII)
        if found is None or int(found[1]) * _SECONDS[found[2]] > _LONGEST_S:
            raise ValueError("must be a time such as `24h`, `90m`, `30s` or `7d`, at most 30 days")
        return value

    @field_validator("metadata")
    @classmethod
    def _is_small(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        pairs = value or {}
        if len(pairs) > _MAX_PAIRS:
            raise ValueError(f"may have {_MAX_PAIRS} pairs, not {len(pairs)}")
        for key, text in pairs.items():
            if len(key) > _MAX_KEY:
                raise ValueError(f"keys may have {_MAX_KEY} characters; `{key[:20]}…` has {len(key)}")
            if len(text) > _MAX_VALUE:
                raise ValueError(f"values may have {_MAX_VALUE} characters; that of `{key}` has {len(text)}")
        return value


class BatchError(BaseModel):
    """Why a batch failed, or a part of it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Errors(BaseModel):
    """All reasons."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    """Requests in a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(BaseModel):
    """OpenAI's batch object, and what only this service has to know.

    Times are in seconds since the epoch. `output_lifetime_s` says how long the files with the answers are kept; None is
    until they are deleted. Source: https://platform.openai.com/docs/api-reference/batch/object
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
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None
    output_lifetime_s: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status in ENDED

    def shown(self) -> dict[str, Any]:
        """The batch as clients see it."""
        # The files get their names before they are there.
        early = () if self.has_ended else ("output_file_id", "error_file_id")
        return self.model_dump(mode="json", exclude={"output_lifetime_s"}) | dict.fromkeys(early)


def _refusal(error: ValidationError) -> RequestError:
    """The first fault, with the field's name."""
    found = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in found["loc"])[:200]
    if found["type"] == "extra_forbidden":
        return RequestError(f"`{field}` means nothing here; known are {', '.join(BatchRequest.model_fields)}.", field)
    if found["type"] == "missing":
        return RequestError(f"`{field}` is required.", field)
    said = found["msg"].removeprefix("Value error, ")
    return RequestError(f"`{field}`: {said[0].lower() + said[1:]}.", field)
