"""`GET /metrics`: the metrics of the whole application on one page."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
from starlette.requests import Request
from starlette.responses import Response

from rayllm.access import Caller, caller_of
from rayllm.core.exposition import content_type, merge, wants_openmetrics
from rayllm.core.headers import METRICS_URL
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.wire.outcome import NotAnsweredError
from rayllm.serving.wire.relay.transport import HttpTransport

logger = logging.getLogger(__name__)

# Well below the ten seconds of scrapers: processes that do not answer in time are left out.
_TIMEOUT_S = 5.0
_LABEL = re.compile(r'[{,](model|model_name|adapter)="([^"]*)"')


async def metrics_page(
    routers: Callable[[bool], Awaitable[list[str]]],
    replica_sets: Callable[[], Mapping[str, ReplicaSet]],
    transport: HttpTransport,
    request: Request,
) -> Response:
    """Gather the metrics of all routers and replicas, except of processes that do not answer.

    A caller whose key is for some models gets only the metrics of these models. `routers` returns the pages of all
    routers, with True in OpenMetrics.
    """
    is_openmetrics = wants_openmetrics(request.headers.get("accept", ""))
    replicas = [replica for each in replica_sets().values() for replica in each.replicas.values()]
    of_routers, of_replicas = await asyncio.gather(
        routers(is_openmetrics),
        asyncio.gather(*(_of_replica(transport, replica, is_openmetrics) for replica in replicas)),
    )
    page = merge([*of_routers, *of_replicas])
    if (caller := caller_of(request.scope)).models is not None:
        page = "\n".join(line for line in page.split("\n") if line[:1] in ("#", "") or _is_permitted(line, caller))
    return Response(page, media_type=content_type(is_openmetrics))


def _is_permitted(line: str, caller: Caller) -> bool:
    """Whether a sample belongs to a model or adapter that the caller may use."""
    labels = dict(_LABEL.findall(line))
    model, adapter = labels.get("model") or labels.get("model_name", ""), labels.get("adapter")
    return caller.may_use(f"{model}:{adapter}" if adapter else model)


async def _of_replica(transport: HttpTransport, replica: Replica, is_openmetrics: bool) -> str:
    accept = {"accept": content_type(is_openmetrics)}
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            transport.send(replica, "GET", METRICS_URL, b"", accept) as reply,
        ):
            page = (await reply.content.read()).decode()
            return page if reply.status == 200 else ""
    except (TimeoutError, NotAnsweredError, aiohttp.ClientError, ConnectionError) as error:
        logger.info("The metrics of the replica %s are missing: %r", replica.id, error)
        return ""
