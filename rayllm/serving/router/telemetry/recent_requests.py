"""The last requests of a router, and an explanation of where the time of each went."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayllm.access import caller_of
from rayllm.core.errors import ObjectNotFoundError
from rayllm.core.headers import LONGEST_REQUEST_ID
from rayllm.core.request_stats import RequestStats
from rayllm.serving.batch_api.page import limit_of
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.wire.record import RequestRecord

# Records kept, of about a kilobyte each.
_MAX_KEPT = 4096
_MAX_LISTED = 1000
_REASONS = {
    "router": "the router read and routed the request. A slow upload or a very large body counts here.",
    "hooks": "it waited for the policy hooks of this service (`router.hooks`).",
    "guards": "it waited for guards (`router.guards`). `rayllm explain` shows their own requests, too.",
    "wait": "it waited for a free slot, because every replica had as many requests as it takes. Raise "
    "`max_ongoing_requests` or the number of replicas.",
    "transfer": "router and replica exchanged the request and its reply.",
    "prepare": "the replica read the request: its template, tokens, files and schema.",
    "queue": "it waited in the engine's queue, because the batch or the KV cache was full. Add replicas, raise "
    "`max_num_seqs`, or lower `max_ongoing_requests` so that other replicas get the request.",
    "deliver": "the reply was finished and sent after the last token.",
}


class RecentRequests:
    """Records of the last requests, by id. Of several requests with an id, the last is kept."""

    def __init__(self, most: int = _MAX_KEPT) -> None:
        self._most = most
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> None:
        self._records.pop(record.request_id, None)
        self._records[record.request_id] = record
        if len(self._records) > self._most:
            self._records.popitem(last=False)

    def find(self, request_id: str) -> dict[str, Any] | None:
        """A request with its explanation, as JSON; None if the record is not kept."""
        record = self._records.get(request_id[:LONGEST_REQUEST_ID])
        return _as_json(record) if record else None

    def last(self, count: int) -> list[dict[str, Any]]:
        """The last requests, the newest first."""
        return [_as_json(record) for record, _ in zip(reversed(self._records.values()), range(count), strict=False)]


def _as_json(record: RequestRecord) -> dict[str, Any]:
    return {"object": "request", **record.as_json(), "explanation": explain(record)}


@dataclass(eq=False)
class RecentRequestsApi:
    """`GET /v1/requests` and `GET /v1/requests/{id}`, for administrators."""

    find: Callable[[str], Awaitable[Sequence[dict[str, Any]]]]
    last: Callable[[int], Awaitable[Sequence[dict[str, Any]]]]
    admin_keys: AdminKeys

    async def get(self, request: Request) -> Response:
        """`GET /v1/requests/{id}`: administrators see all requests, a key its own."""
        caller = caller_of(request.scope)
        if not caller.name:
            self.admin_keys.check(request)
        request_id = request.path_params["request_id"]
        found = [each for each in await self.find(request_id) if caller.is_admin or each["key"] == caller.name]
        if not found:
            message = f"There is no request `{request_id[:200]}` among the last {_MAX_KEPT} of each router."
            raise ObjectNotFoundError(message, "request_id")
        return JSONResponse(found[0])

    async def list(self, request: Request) -> Response:
        """`GET /v1/requests?limit=20`: the newest first."""
        self.admin_keys.check(request)
        limit = limit_of(request.query_params, 20, _MAX_LISTED)
        found = sorted(await self.last(limit), key=lambda each: -each["created"])
        return JSONResponse({"object": "list", "data": found[:limit]})


def explain(record: RequestRecord) -> str:
    """What most of the request's time was spent on, and what would shorten that time."""
    parts = dict(record.parts())
    name, seconds = max(parts.items(), key=lambda part: part[1])
    share = seconds / record.total_s if record.total_s > 0 else 0.0
    return f"{_seconds(seconds)} of {_seconds(record.total_s)} ({share:.0%}): {_reason(name, record)}"


def _reason(name: str, record: RequestRecord) -> str:
    stats = record.stats or RequestStats()
    if name == "lost" and record.continuations:
        return "its replica died or had to end in the middle of the reply, and another replica continued the reply."
    if name == "lost":
        return f"of {record.attempts} attempts, some met a replica that was full, draining or died; its log says why."
    if name == "wait" and record.waited_for == "a running replica":
        return (
            "it waited until a replica was running. Keep one with `autoscaling_config.min_replicas: 1`, or see why "
            "replicas start with `rayllm status`."
        )
    if name == "transfer" and record.stats is None:
        return "the replica had the request, but reported no times. Its log may say more."
    if name == "adapter":
        return (
            f"the replica loaded the adapter `{record.adapter}`. List it in `lora_modules` to have it loaded from the "
            "start, or raise `max_num_adapters_per_replica` if it was evicted."
        )
    if name == "prefill":
        new = stats.prompt_tokens - stats.cached_tokens
        return f"the engine read the prompt: {new} tokens that were not cached, and {stats.cached_tokens} that were."
    if name == "decode":
        return _decode(stats)
    if name == "deliver" and stats.blocked_s > stats.deliver_s / 2:
        return f"the client read slowly: the reply waited {_seconds(stats.blocked_s)} for it."
    return _REASONS[name]


def _decode(stats: RequestStats) -> str:
    mean = stats.seconds_per_token
    pace = f", one every {_seconds(mean)}" if mean else ""
    gap = f" The longest pause between two took {_seconds(stats.slowest_gap_s)}." if stats.slowest_gap_s else ""
    text = f"the engine generated {stats.generated_tokens} tokens{pace}.{gap}"
    if not stats.preemptions:
        return text
    return f"{text} Preempted: {stats.preemptions}×, because the KV cache is too small for so many requests."


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
