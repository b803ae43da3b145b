"""gcp-storage-emulator, patched to be closer to the real service."""

from __future__ import annotations

import sys
from http import HTTPStatus, server
from typing import Any

from gcp_storage_emulator import server as emulator
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

_ERROR = {"error": {"code": 404, "errors": [{"domain": "global", "reason": "notFound"}]}}


class _Threaded(server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(emulator.RequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True


def _current(handle: Any) -> Any:
    """Have a handler answer for the generation that is asked for, or not at all."""

    def answer(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        asked = request.query.get("generation", [None])[0]
        if asked is not None and asked != _generation(request, storage):
            name = f"{request.params['bucket_name']}/{request.params['object_id']}"
            response.status = HTTPStatus.NOT_FOUND
            response.json({"error": {**_ERROR["error"], "message": f"No such object: {name}"}})
            return
        handle(request, response, storage, *args, **kwargs)

    return answer


def _generation(request: Any, storage: Any) -> str | None:
    try:
        return str(storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])["generation"])
    except NotFound:
        return None


def main() -> None:
    """Serve until killed."""
    for _, methods in emulator.HANDLERS:
        for method, handle in methods.items():
            if handle in (objects.get, objects.download):
                methods[method] = _current(handle)
    emulator.server.HTTPServer = _Threaded
    emulator.RequestHandler = _Handler
    emulator.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True).run()


if __name__ == "__main__":
    main()
