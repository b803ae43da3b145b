"""Files that the router serves itself."""

import gzip
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response


class StaticFile:
    """A file in memory: as it is, and compressed."""

    def __init__(self, path: Path, headers: Mapping[str, str]) -> None:
        self._body = path.read_bytes()
        self._compressed = gzip.compress(self._body, mtime=0)
        self._headers = {**headers, "vary": "accept-encoding"}

    async def answer(self, request: Request) -> Response:
        """Answer `GET` with the file, compressed where the client takes it."""
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._compressed, headers=self._headers | {"content-encoding": "gzip"})
        return Response(self._body, headers=self._headers)
