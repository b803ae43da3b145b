"""Who sends a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rayllm.access.limits import NO_LIMITS, Limits
from rayllm.errors import PermissionDeniedError


@dataclass(frozen=True)
class Caller:
    """The sender of a request.

    `name` is that of its key, and `tenant` owns the files and batches that it creates; both are empty without keys.
    `models` are names of models and adapters that it may use, with `*` for any text; None are all. `limits` are those
    of its key.
    """

    name: str = ""
    tenant: str = ""
    models: tuple[str, ...] | None = None
    is_admin: bool = False
    limits: Limits = NO_LIMITS

    def may_use(self, *names: str) -> bool:
        """Whether it may use a model.

        Args:
            names: all names of the model or adapter, of which one has to be allowed.
        """
        return self.models is None or any(fnmatchcase(name, model) for name in names for model in self.models)

    def check_model(self, *names: str) -> None:
        """Check that it may use a model. Of what it may not use, it does not learn whether it exists.

        Args:
            names: all names of the model or adapter, first as in the request.

        Raises:
            PermissionDeniedError: its key is for other models.
        """
        if not self.may_use(*names):
            allowed = ", ".join(f"`{model}`" for model in (self.models or ())[:20]) or "none"
            message = f"The key `{self.name}` may not use the model `{names[0][:200]}`; it may use {allowed}."
            raise PermissionDeniedError(message, "model")

    def owns(self, tenant: str) -> bool:
        """Whether it may see files and batches of a tenant: administrators see all, and so does anyone without keys."""
        return self.is_admin or not self.tenant or self.tenant == tenant


ANYONE = Caller()
"""The sender of every request to a service without keys."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The sender of the request with this ASGI scope."""
    caller: Caller = scope.get("user", ANYONE)
    return caller
