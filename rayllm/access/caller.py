"""Who sends a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rayllm.access.limits import Amounts
from rayllm.core.errors import PermissionDeniedError, RequestError
from rayllm.core.headers import PRIORITY
from rayllm.core.priority import Priority


@dataclass(frozen=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: name of the caller's key; empty without keys.
        tenant: who the caller's files and batches belong to; empty without keys.
        models: names of models and adapters that the caller may use, with `*` for any text; None is all.
        is_admin: may load adapters, and see the requests, files and usage of all keys.
        limits: limits of the key.
        priority: highest class of the caller's requests.
        labels: labels of the key, to group usage by.
        is_scraper: may read metrics and nothing else.
    """

    name: str = ""
    tenant: str = ""
    models: tuple[str, ...] | None = None
    is_admin: bool = False
    limits: Amounts = field(default_factory=dict, hash=False)
    priority: Priority = Priority.STANDARD
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    is_scraper: bool = False

    def may_use(self, *names: str) -> bool:
        """Whether the caller may use a model, given all names of the model or adapter."""
        return self.models is None or any(fnmatchcase(name, model) for name in names for model in self.models)

    def check_model(self, *names: str) -> None:
        """Check access to a model by all its names, first the name in the request. Raises PermissionDeniedError."""
        if not self.may_use(*names):
            allowed = ", ".join(f"`{model}`" for model in (self.models or ())[:20]) or "none"
            message = f"The key `{self.name}` may not use the model `{names[0][:200]}`; it may use {allowed}."
            raise PermissionDeniedError(message, "model")

    def priority_of(self, wanted: str | None) -> Priority:
        """The class of a request that asks for the class `wanted`. Raises RequestError or PermissionDeniedError."""
        if wanted is None:
            return self.priority
        try:
            priority = Priority.named(wanted)
        except KeyError:
            names = ", ".join(f"`{each.label}`" for each in Priority)
            raise RequestError(f"The header `{PRIORITY}` must be one of {names}.", PRIORITY) from None
        # Without keys, callers cannot be told apart.
        if self.name and priority < self.priority:
            message = f"The key `{self.name}` sends `{self.priority.label}` requests, and no `{priority.label}` ones."
            raise PermissionDeniedError(message, PRIORITY)
        return priority

    def may_see(self, tenant: str) -> bool:
        """Whether the caller may see a tenant's files and batches; administrators and callers without keys see all."""
        return self.is_admin or not self.tenant or self.tenant == tenant


ANYONE = Caller()
"""The sender of every request to a service without keys."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The sender of the request with this ASGI scope."""
    caller: Caller = scope.get("user", ANYONE)
    return caller
