"""`GET /metrics`: the metrics of the whole application on one page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from starlette.requests import Request
from starlette.responses import Response

from rayllm.core.exposition import content_type, merge, wants_openmetrics
from rayllm.core.headers import METRICS_PATH
from rayllm.serving.router.replicas.errors import ReplicaError
from rayllm.serving.router.replicas.http_transport import HttpTransport
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_set import ReplicaSet

logger = logging.getLogger(__name__)

# Scrapers give up after ten seconds: leave out processes that have not answered well before.
_TIMEOUT_S = 5.0


@dataclass(eq=False)
class MetricsPage:
    """Gathers the metrics of all routers and replicas of an application, whichever router is asked.

    Args:
        routers: renders the pages of all routers, this one's included, in OpenMetrics or not.
    """

    routers: Callable[[bool], Awaitable[list[str]]]
    replica_sets: Callable[[], Mapping[str, ReplicaSet]]
    transport: HttpTransport

    async def answer(self, request: Request) -> Response:
        """Answer a scrape with what is known now: a process that dies meanwhile is left out."""
        is_openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        replicas = [replica for each in self.replica_sets().values() for replica in each.replicas.values()]
        of_routers, of_replicas = await asyncio.gather(
            self.routers(is_openmetrics),
            asyncio.gather(*(self._of_replica(replica, is_openmetrics) for replica in replicas)),
        )
        return Response(merge([*of_routers, *of_replicas]), media_type=content_type(is_openmetrics))

    async def _of_replica(self, replica: Replica, is_openmetrics: bool) -> str:
        accept = {"accept": content_type(is_openmetrics)}
        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self.transport.send(replica, "GET", METRICS_PATH, b"", accept) as reply,
            ):
                page = (await reply.content.read()).decode()
                return page if reply.status == 200 else ""
        except (TimeoutError, ReplicaError, aiohttp.ClientError, ConnectionError) as error:
            logger.info("The metrics of the replica %s are missing: %r", replica.id, error)
            return ""
