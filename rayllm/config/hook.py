"""Schema of a policy hook."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rayllm.config.base import Frozen, matching

_CALLABLE = r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|\S.*\.py):([A-Za-z_]\w*(\.[A-Za-z_]\w*)*)"


class HookConfig(Frozen):
    """A Python function that sees each request before it is routed, or its usage after its end."""

    callable: Annotated[str, matching(_CALLABLE, "must be `package.module:name` or `file.py:name`")]
    """`package.module:name`, or `file.py:name`; both must be on every node with a router."""
    when: Literal["request", "usage"] = "request"
    """`request`: called before the request is routed, and may change or refuse it. `usage`: called after its end."""
    timeout_s: float = Field(1.0, gt=0, le=60)
    """Seconds that a call may take."""
    on_error: Literal["refuse", "allow"] = "refuse"
    """What happens to a request whose hook fails or takes too long: `refuse` answers 500, `allow` goes on with the
    request as it was."""

    @model_validator(mode="after")
    def _usage_has_nothing_to_refuse(self) -> HookConfig:
        if self.when == "usage" and "on_error" in self.model_fields_set:
            raise ValueError("`on_error` is for `when: request`; after its end a request cannot be refused")
        return self
