"""Schema of an OpenID Connect issuer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayllm.config.base import Frozen, matching
from rayllm.core.priority import PriorityName

_Url = Annotated[str, matching(r"https?://[^/\s].*", "must be a URL, such as https://issuer.example.com")]


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
    """Class of the requests: `interactive` ones go first, `batch` ones use what others leave idle."""
