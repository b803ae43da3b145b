"""Quotas of keys, shared by all routers: a router leases a part of a quota, and needs no call for each request."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from ray.exceptions import RayError

from rayllm.access.limits import Amounts, Kind
from rayllm.access.quota import Lease, Quota
from rayllm.cluster.ray_internals import kv_delete, kv_get, kv_keys, kv_put
from rayllm.core.errors import UnavailableError
from rayllm.serving.cluster.background import in_background
from rayllm.serving.cluster.state.detached_actor import DetachedActor, detached_actor
from rayllm.sources.transfer.journal import boot_id

logger = logging.getLogger(__name__)

_ACTOR = "rayllm-quotas"
_PREFIX = "rayllm-quotas/"
# Seconds between saves, and so of usage that may be lost with the actor.
_SAVE_S = 1.0
# Seconds that a request waits for another request of its key to end, which a router may be about to report.
_CONCURRENT_WAIT_S = 0.05
# Seconds without a report after which a router counts as dead.
_SILENT_S = 10.0
# Seconds that a request waits for the actor, which may be restarting. On a busy machine that takes Ray more than ten.
_TIMEOUT_S = 30.0
_RETRY_S = 0.1

Key = tuple[str, str]


class Change(NamedTuple):
    """An amount that a key used, or a negative amount released, of a lease `age_s` seconds ago."""

    key: str
    kind: Kind
    amount: int
    age_s: float


@dataclass(frozen=True)
class Instant:
    """A point in time whose age another process can tell, even if the clock is set meanwhile.

    Attributes:
        epoch_s: seconds since the epoch.
        monotonic_s: time of the machine's monotonic clock.
        boot: id of the boot, for which the monotonic clock holds.
    """

    epoch_s: float
    monotonic_s: float
    boot: str

    @classmethod
    def now(cls) -> Self:
        return cls(time.time(), time.monotonic(), boot_id())

    @property
    def age_s(self) -> float:
        """Seconds since this instant; on another machine or after a reboot, by the clocks."""
        now = Instant.now()
        if self.boot == now.boot:
            return max(0.0, now.monotonic_s - self.monotonic_s)
        return max(0.0, now.epoch_s - self.epoch_s)


class QuotaActor(DetachedActor):
    """Quotas by application and key. A detached actor of the cluster, which saves them for its own restart."""

    def __init__(self, version: str = "") -> None:
        super().__init__(version)
        self._quotas: dict[Key, Quota] = {}
        self._changed: dict[Key, None] = {}
        self._released = asyncio.Event()
        # Time of the last report of each router of each application.
        self._routers: dict[Key, float] = {}
        self._load()
        self._saving: asyncio.Task[None] | None = None

    async def lease(
        self, app: str, router: str, key: str, limits: Amounts, need: Amounts, want: Amounts, released: Sequence[Change]
    ) -> dict[str, Any]:
        """Release earlier leases, then lease as `Quota.lease`; returns the fields of a `Lease`."""
        self.check_open()
        await self.settle(app, router, released)
        deadline = time.monotonic() + _CONCURRENT_WAIT_S
        while True:
            now = time.monotonic()
            quota = self._quotas.setdefault((app, key), Quota())
            lease = quota.lease(now, router, limits, need, want, self._count(app, now))
            if lease.limited != "concurrent" or now >= deadline:
                break
            self._released.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - now):
                    await self._released.wait()
        self._changed[app, key] = None
        return asdict(lease)

    async def settle(
        self, app: str, router: str, changes: Sequence[Change], in_progress: Mapping[str, int] | None = None
    ) -> None:
        """Apply changes, and set the requests in progress by key to what the router reports."""
        self.check_open()
        if self._saving is None:
            self._saving = in_background(self._save())
        now = time.monotonic()
        self._routers[app, router] = now
        for key, kind, amount, age_s in changes:
            self._quotas.setdefault((app, key), Quota()).use(now, router, kind, amount, age_s)
            self._changed[app, key] = None
        reported = {} if in_progress is None else {**self._busy(app, router), **in_progress}
        for key, count in reported.items():
            self._quotas.setdefault((app, key), Quota()).correct(now, router, count)
        if in_progress is not None or any(change[1] == "concurrent" for change in changes):
            self._released.set()

    def state(self) -> dict[str, Any]:
        """Save the quotas to the key-value store, from which the replacement loads them."""
        _write(*self._unsaved())
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing: quotas are loaded from the key-value store at the start."""

    def _busy(self, app: str, router: str) -> dict[str, int]:
        """The keys with requests in progress of the router, with count 0."""
        return {key: 0 for (other, key), quota in self._quotas.items() if other == app and router in quota.routers}

    def _count(self, app: str, now: float) -> int:
        return max(1, sum(1 for (other, _), at in self._routers.items() if other == app and at > now - _SILENT_S))

    def _load(self) -> None:
        for name in kv_keys(_PREFIX):
            if value := kv_get(name):
                saved = json.loads(value)
                quota = self._quotas[saved["app"], saved["key"]] = Quota()
                quota.restore(time.monotonic(), saved["used"], Instant(**saved["saved_at"]).age_s)

    async def _save(self) -> None:
        while True:
            await asyncio.sleep(_SAVE_S)
            self._forget_silent_routers()
            changed = dict(self._changed)
            try:
                await asyncio.to_thread(_write, *self._unsaved())
            except Exception:
                logger.exception("Quotas cannot be saved now")
                self._changed.update(changed)

    def _unsaved(self) -> tuple[dict[str, str], list[str]]:
        """Entries to write to the key-value store, and names to delete there."""
        now, changed, self._changed = time.monotonic(), self._changed, {}
        saved_at = asdict(Instant.now())
        idle = [each for each, quota in self._quotas.items() if quota.is_idle(now)]
        for each in idle:
            del self._quotas[each]
        entries = {
            _name(app, key): json.dumps({"app": app, "key": key, "saved_at": saved_at, "used": quota.state(now)})
            for app, key in changed
            if (quota := self._quotas.get((app, key)))
        }
        return entries, [_name(app, key) for app, key in idle]

    def _forget_silent_routers(self) -> None:
        now = time.monotonic()
        for app, router in [each for each, at in self._routers.items() if at < now - _SILENT_S]:
            del self._routers[app, router]
            for (other, _), quota in self._quotas.items():
                if other == app:
                    quota.forget(router)
            self._released.set()


class QuotaRegistry:
    """The quotas of one application, for one router."""

    def __init__(self, app: str, router: str) -> None:
        self._app = app
        self._router = router
        self._actor: Any = None

    async def lease(
        self, key: str, limits: Amounts, need: Amounts, want: Amounts, released: Sequence[Change] = ()
    ) -> Lease:
        """Release and lease, waiting while the actor restarts. Raises UnavailableError without an answer."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while True:
                    try:
                        return Lease(**await self._call("lease", key, limits, need, want, list(released)))
                    except RayError as error:
                        logger.warning("The registry of quotas does not answer, trying again: %r", error)
                        # Perhaps released already; if not, the amounts count until they leave the window.
                        released = ()
                        await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            message = "The limits of your key cannot be checked now; try again."
            raise UnavailableError(message, None, "limits_unavailable", 5) from None

    async def settle(self, changes: Sequence[Change], in_progress: Mapping[str, int] | None = None) -> None:
        """Report changes, which are lost if the actor dies meanwhile, and that this router lives."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._call("settle", list(changes), in_progress)
        except (RayError, TimeoutError) as error:
            logger.warning("The registry of quotas does not answer: %r", error)

    async def _call(self, method: str, *args: Any) -> Any:
        if self._actor is None:
            # It blocks on Ray.
            self._actor = await asyncio.to_thread(detached_actor, QuotaActor, _ACTOR)
        try:
            return await getattr(self._actor, method).remote(self._app, self._router, *args)
        except RayError:
            self._actor = None
            raise


def _write(entries: Mapping[str, str], idle: Sequence[str]) -> None:
    for name, value in entries.items():
        kv_put(name, value)
    for name in idle:
        kv_delete(name)


def _name(app: str, key: str) -> str:
    return f"{_PREFIX}{app}/{key}"
