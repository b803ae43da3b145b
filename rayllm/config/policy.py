"""Schemas of the router's policy: hooks, guards, and the issuer of tokens."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rayllm.config.base import Frozen, matching
from rayllm.core.priority import PriorityName

_CALLABLE = r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|\S.*\.py):([A-Za-z_]\w*(\.[A-Za-z_]\w*)*)"
_Url = Annotated[str, matching(r"https?://[^/\s].*", "must be a URL, such as https://issuer.example.com")]


class HookConfig(Frozen):
    """A Python function that is called with each request before routing, or with the request's usage after the end."""

    callable: Annotated[str, matching(_CALLABLE, "must be `package.module:name` or `file.py:name`")]
    """`package.module:name`, or `file.py:name`; both must be on every node with a router."""
    when: Literal["request", "usage"] = "request"
    """`request`: called before the request is routed, and may change or refuse it. `usage`: called after its end."""
    timeout_s: float = Field(1.0, gt=0, le=60)
    """Seconds that a call may take."""
    on_error: Literal["refuse", "allow"] = "refuse"
    """What happens to a request whose hook fails or takes too long: `refuse` answers 500, `allow` continues with the
    request as it was."""

    @model_validator(mode="after")
    def _usage_has_nothing_to_refuse(self) -> Self:
        if self.when == "usage" and "on_error" in self.model_fields_set:
            raise ValueError("`on_error` is for `when: request`; after its end a request cannot be refused")
        return self


class GuardConfig(Frozen):
    """A model served here that is asked whether requests and replies are safe."""

    model: str
    """Id of the guard, one of the models."""
    verdict: Literal["llama_guard", "qwen3_guard", "labels"]
    """Format of the guard's answers: `llama_guard`, `safe`, or `unsafe` and a line of categories; `qwen3_guard`,
    `Safety: …` and `Categories: …`; `labels`, the probabilities of a classifier."""
    check: tuple[Literal["input", "output"], ...] = ("input",)
    """`input`: requests, before they are sent to a model; `output`: replies, before they are sent to the client. With
    an empty list the guard only answers `/v1/moderations`."""
    models: tuple[str, ...] = ("*",)
    """Models to check, with `*` for any text. Guards are not checked."""
    block: tuple[str, ...] | None = None
    """Categories that are refused, as the guard names them; null is all. Not for `labels`."""
    thresholds: dict[str, float] = {}
    """For `labels`: label → probability from which it is refused. Other labels are safe."""
    window_chars: int = Field(200, ge=1, le=20_000)
    """Characters of a stream that are sent only after the guard's verdict on them."""
    question_chars: int = Field(8000, ge=100, le=1_000_000)
    """Most characters in one question to the guard; a longer text is checked in parts."""
    timeout_s: float = Field(10.0, gt=0, le=600)
    """Seconds for an answer of the guard."""
    on_error: Literal["refuse", "allow"] = "refuse"
    """What happens if the guard fails or takes too long: `refuse` answers 503, `allow` continues."""

    @model_validator(mode="after")
    def _labels_have_thresholds(self) -> Self:
        is_classifier = self.verdict == "labels"
        if is_classifier and not self.thresholds:
            raise ValueError("`verdict: labels` needs `thresholds`, such as `{violence: 0.5}`")
        if not is_classifier and self.thresholds:
            raise ValueError(f"`thresholds` are for `verdict: labels`; with `{self.verdict}`, use `block`")
        if is_classifier and self.block is not None:
            raise ValueError("`block` is not for `verdict: labels`; leave labels out of `thresholds`")
        if any(not 0 < threshold <= 1 for threshold in self.thresholds.values()):
            raise ValueError("`thresholds` must be probabilities, above 0 and at most 1")
        if self.question_chars < 2 * self.window_chars:
            raise ValueError(
                "`question_chars` must be at least twice `window_chars`: a window is asked about with the one before"
            )
        return self


class OidcConfig(Frozen):
    """Tokens (JWTs) of an OpenID Connect issuer, accepted in place of API keys."""

    issuer: _Url
    """URL of the issuer, as tokens have it in `iss`."""
    audience: str
    """What tokens must have in `aud`."""
    jwks_url: _Url | None = None
    """URL of the issuer's public keys; null asks `<issuer>/.well-known/openid-configuration`."""
    name_claim: str = "sub"
    """Claim with the name that logs and usage show, after `oidc:`."""
    tenant_claim: str | None = None
    """Claim with the tenant, which owns files and batches; null gives each name its own."""
    models_claim: str | None = None
    """Claim with the list of models that the token may use, as keys have it; null allows all."""
    admin_claim: str | None = None
    """Claim that is true for administrators; null is none."""
    requests_per_minute: int | None = Field(None, ge=1)
    """Most requests of a name in any minute; null is no limit."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Most tokens of a name in any minute, of prompts and answers; null is no limit."""
    tokens_per_day: int | None = Field(None, ge=1)
    """Most tokens of a name in any 24 hours; null is no limit."""
    max_concurrent: int | None = Field(None, ge=1)
    """Most requests of a name in progress at once; null is no limit."""

    priority: PriorityName = "standard"
    """Class of the requests: `interactive` requests go first, `batch` requests use idle capacity."""
