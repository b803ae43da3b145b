"""Tokens of an OpenID Connect issuer, in place of API keys."""

import re
from collections.abc import Mapping
from typing import Any

import jwt

from rayllm.access.caller import Caller
from rayllm.access.limits import limits_of
from rayllm.config.policy import OidcConfig
from rayllm.core.errors import AuthenticationError
from rayllm.core.priority import Priority

PREFIX = "oidc:"
"""Prefix of the names of callers with tokens; no key has such a name."""
# Only algorithms with public keys: with HS256, anyone who knows an issuer's public key could sign.
_ALGORITHMS = [f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)] + ["EdDSA"]
# Seconds that clocks may differ.
_LEEWAY_S = 30
_NAME = re.compile(r"[\x21-\x7e]{1,128}")


def is_token(presented: str) -> bool:
    """Whether what a client sent as its key looks like a JWT."""
    return presented.startswith("eyJ") and presented.count(".") == 2


def key_id(token: str) -> str:
    """Id of the key that signed a token; may be empty. Raises AuthenticationError if `token` is not a JWT."""
    try:
        return str(jwt.get_unverified_header(token).get("kid", ""))
    except jwt.PyJWTError:
        raise AuthenticationError("The token is not valid: it is not a JWT.") from None


def verify(token: str, key: jwt.PyJWK, config: OidcConfig) -> tuple[Caller, float]:
    """Verify a token; returns the caller, and the expiry in seconds since the epoch. Raises AuthenticationError."""
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=_ALGORITHMS,
            audience=config.audience,
            issuer=config.issuer,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "iss", "aud"]},
        )
    except jwt.ExpiredSignatureError:
        raise AuthenticationError("The token has expired; send a new one.") from None
    except jwt.PyJWTError as error:
        raise AuthenticationError(f"The token is not valid: {str(error)[:200]}.") from None
    return _caller(claims, config), float(claims["exp"])


def _caller(claims: Mapping[str, Any], config: OidcConfig) -> Caller:
    name = PREFIX + _text(claims, config.name_claim)
    tenant = _text(claims, config.tenant_claim) if config.tenant_claim else name
    is_admin = config.admin_claim is not None and claims.get(config.admin_claim) is True
    models, priority = _models(claims, config.models_claim), Priority.named(config.priority)
    return Caller(name, tenant, models, is_admin, limits_of(config), priority)


def _text(claims: Mapping[str, Any], claim: str) -> str:
    value = claims.get(claim)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise AuthenticationError(f"The token's claim `{claim}` must be a text of 1 to 128 visible ASCII characters.")
    return value


def _models(claims: Mapping[str, Any], claim: str | None) -> tuple[str, ...] | None:
    if claim is None:
        return None
    value = claims.get(claim)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise AuthenticationError(f"The token's claim `{claim}` must be a list of models.")
    return tuple(value)
