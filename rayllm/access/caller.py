"""Who sends a request."""

from __future__ import annotations

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

    `name` is that of its key, and `tenant` owns the files and batches that it creates; both are empty without keys.
    `models` are names of models and adapters that it may use, with `*` for any text; None are all. `limits` are those
    of its key, and `priority` is the highest class of its requests. Usage can be grouped by `labels`. `is_scraper` says
    that it may read metrics, and nothing else.
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
        """Whether it may use a model."""
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

    def priority_of(self, wanted: str | None) -> Priority:
        """The class of a request.

        Args:
            wanted: the name of the class that the request asks for, None if it does not.

        Raises:
            RequestError: there is no such class.
            PermissionDeniedError: its key is for lower classes.
        """
        if wanted is None:
            return self.priority
        try:
            priority = Priority.named(wanted)
        except KeyError:
            names = ", ".join(f"`{each.label}`" for each in Priority)
            raise RequestError(f"The header `{PRIORITY}` must be one of {names}.", PRIORITY) from None
        # Without keys nobody is told from anybody.
        if self.name and priority < self.priority:
            message = f"The key `{self.name}` sends `{self.priority.label}` requests, and no `{priority.label}` ones."
            raise PermissionDeniedError(message, PRIORITY)
        return priority

    def owns(self, tenant: str) -> bool:
        """Whether it may see files and batches of a tenant: administrators see all, and so does anyone without keys."""
        return self.is_admin or not self.tenant or self.tenant == tenant


ANYONE = Caller()
"""The sender of every request to a service without keys."""


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The sender of the request with this ASGI scope."""
    caller: Caller = scope.get("user", ANYONE)
    return caller
