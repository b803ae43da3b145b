"""A local server that speaks enough of S3 and of Google Cloud Storage for downloads, and is not what limits them.

python -m benchmarks.object_server FOLDER

The bucket `weights` holds the folder's files; `no-crc` holds them without the CRC that S3 keeps of every object. Bytes
go by sendfile(2), from the page cache into the socket. It prints its port when it has read every file once for the
checksums, and ends when its input does.

As the real ones do: ranges, If-Match, generations, ETags that are MD5s, S3's CRC64NVME of whole objects where it is
asked for, Google's CRC32C and MD5 in every answer with a whole object, listings in pages. Everything else is left out:
nobody has to say who they are, and only single ranges `bytes=a-b` and `bytes=a-` are known.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from awscrt import checksums

BUCKET = "weights"
WITHOUT_CRC = "no-crc"
_STEP = 1024 * 1024
_PAGE = 1000
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_REASONS = {
    200: "OK",
    206: "Partial Content",
    404: "Not Found",
    412: "Precondition Failed",
    416: "Range Not Satisfiable",
}
_METADATA = "/storage/v1/b/"
_MEDIA = "/download/storage/v1/b/"


@dataclass(frozen=True)
class Object:
    """A file as both protocols describe it. Checksums in base64, `md5` also in hexadecimal as S3's ETag has it."""

    name: str
    descriptor: int
    size: int
    modified: float
    etag: str
    md5: str
    crc32c: str
    crc64nvme: str

    @property
    def generation(self) -> str:
        """A number that names this content."""
        return str(int(self.modified * 1e6))


@dataclass(frozen=True)
class Request:
    """A request without a body; names of headers in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """An answer whose body is either `text` or the object's bytes [start, end)."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: bytes = b""
    object: Object | None = None
    start: int = 0
    end: int = 0


def read(folder: Path) -> dict[str, Object]:
    """The folder's files by name; reading them also brings them into the page cache."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {name: _object(path, name) for path in paths for name in [path.relative_to(folder).as_posix()]}


def _object(path: Path, name: str) -> Object:
    md5, crc32c, crc64nvme = hashlib.md5(usedforsecurity=False), 0, 0
    descriptor = os.open(path, os.O_RDONLY)
    status = os.fstat(descriptor)
    for at in range(0, status.st_size, _STEP):
        piece = os.pread(descriptor, _STEP, at)
        md5.update(piece)
        crc32c, crc64nvme = checksums.crc32c(piece, crc32c), checksums.crc64nvme(piece, crc64nvme)
    in_base64 = [_base64(md5.digest()), _base64(crc32c.to_bytes(4, "big")), _base64(crc64nvme.to_bytes(8, "big"))]
    return Object(name, descriptor, status.st_size, status.st_mtime, f'"{md5.hexdigest()}"', *in_base64)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def answer(request: Request, objects: Mapping[str, Object]) -> Reply:
    """What either protocol says to a request; S3's is the one whose paths begin with a bucket."""
    for prefix, handler in ((_METADATA, _gcs_metadata), (_MEDIA, _gcs_media)):
        if request.path.startswith(prefix):
            _, _, name = request.path.removeprefix(prefix).partition("/o")
            return handler(request, unquote(name.removeprefix("/")), objects)
    bucket, _, name = request.path.removeprefix("/").partition("/")
    if bucket not in (BUCKET, WITHOUT_CRC):
        return _s3_error(404, "NoSuchBucket")
    return _s3_object(request, unquote(name), bucket, objects) if name else _s3_list(request, bucket, objects)


def _page(query: Mapping[str, str], size: str, token: str, objects: Mapping[str, Object]) -> tuple[list[Object], str]:
    """The page of a listing that is asked for, and the token of the next one. A token is the last name before it."""
    after, most = query.get(token, ""), min(int(query.get(size, _PAGE)), _PAGE)
    found = [o for name, o in sorted(objects.items()) if name.startswith(query.get("prefix", "")) and name > after]
    return found[:most], found[most - 1].name if len(found) > most else ""


def _s3_list(request: Request, bucket: str, objects: Mapping[str, Object]) -> Reply:
    """ListObjectsV2. Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html"""
    page, token = _page(request.query, "max-keys", "continuation-token", objects)
    encode = quote if request.query.get("encoding-type") == "url" else escape
    contents = "".join(
        f"<Contents><Key>{encode(o.name)}</Key><LastModified>{_iso(o.modified)}</LastModified>"
        f"<ETag>{escape(o.etag)}</ETag><Size>{o.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for o in page
    )
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    encoding = "<EncodingType>url</EncodingType>" if encode is quote else ""
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="{_NAMESPACE}"><Name>{bucket}</Name>'
        f"<Prefix>{encode(request.query.get('prefix', ''))}</Prefix><KeyCount>{len(page)}</KeyCount>{encoding}{more}"
        f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{contents}</ListBucketResult>"
    )
    return Reply(200, {"Content-Type": "application/xml"}, text.encode())


def _s3_object(request: Request, name: str, bucket: str, objects: Mapping[str, Object]) -> Reply:
    """HeadObject and GetObject. The checksum of the whole comes only with the whole."""
    if (found := objects.get(name)) is None:
        return _s3_error(404, "NoSuchKey")
    headers = {"ETag": found.etag}
    asked = request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"
    if asked and "range" not in request.headers and bucket != WITHOUT_CRC:
        headers |= {"x-amz-checksum-crc64nvme": found.crc64nvme, "x-amz-checksum-type": "FULL_OBJECT"}
    return _media(request, found, headers)


def _s3_error(status: int, code: str) -> Reply:
    return Reply(status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())


def _gcs_metadata(request: Request, name: str, objects: Mapping[str, Object]) -> Reply:
    """Objects: list and get. Source: https://cloud.google.com/storage/docs/json_api/v1/objects"""
    if not name:
        page, token = _page(request.query, "maxResults", "pageToken", objects)
        listing = {"kind": "storage#objects", "items": [_resource(o, request) for o in page]}
        return _json(listing | ({"nextPageToken": token} if token else {}))
    if name not in objects:
        return _json({"error": {"code": 404, "message": f"No such object: {name}"}}, 404)
    if request.query.get("alt") == "media":
        return _gcs_media(request, name, objects)
    return _json(_resource(objects[name], request))


def _gcs_media(request: Request, name: str, objects: Mapping[str, Object]) -> Reply:
    """The object's bytes; its checksums only with the whole of them."""
    found = objects.get(name)
    if found is None or request.query.get("generation", found.generation) != found.generation:
        return _json({"error": {"code": 404, "message": f"No such object: {name}"}}, 404)
    headers = {"ETag": _tag(found), "X-Goog-Generation": found.generation, "X-Goog-Metageneration": "1"}
    headers |= {"X-Goog-Storage-Class": "STANDARD", "X-Goog-Stored-Content-Encoding": "identity"}
    if "range" not in request.headers:
        headers["X-Goog-Hash"] = f"crc32c={found.crc32c},md5={found.md5}"
    return _media(request, found, headers)


def _resource(found: Object, request: Request) -> dict[str, object]:
    """Source: https://cloud.google.com/storage/docs/json_api/v1/objects#resource"""
    where = f"{BUCKET}/o/{quote(found.name, safe='')}"
    host = f"http://{request.headers['host']}"
    return {
        "kind": "storage#object",
        "id": f"{BUCKET}/{found.name}/{found.generation}",
        "selfLink": f"{host}{_METADATA}{where}",
        "mediaLink": f"{host}{_MEDIA}{where}?generation={found.generation}&alt=media",
        "name": found.name,
        "bucket": BUCKET,
        "generation": found.generation,
        "metageneration": "1",
        "contentType": "application/octet-stream",
        "storageClass": "STANDARD",
        "size": str(found.size),
        "md5Hash": found.md5,
        "crc32c": found.crc32c,
        "etag": _tag(found),
        "timeCreated": _iso(found.modified),
        "updated": _iso(found.modified),
    }


def _tag(found: Object) -> str:
    return _base64(found.generation.encode())


def _json(value: object, status: int = 200) -> Reply:
    return Reply(status, {"Content-Type": "application/json"}, json.dumps(value).encode())


def _media(request: Request, found: Object, headers: Mapping[str, str]) -> Reply:
    """The whole object or one range of it, if it is still the one that is asked for."""
    if request.headers.get("if-match", headers["ETag"]) != headers["ETag"]:
        return _s3_error(412, "PreconditionFailed")
    common = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
    common["Last-Modified"] = formatdate(found.modified, usegmt=True)
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if not asked:
        return Reply(200, common, object=found, end=found.size)
    start, end = int(asked[1]), min(int(asked[2] or found.size - 1) + 1, found.size)
    if start >= end:
        return _s3_error(416, "InvalidRange")
    common["Content-Range"] = f"bytes {start}-{end - 1}/{found.size}"
    return Reply(206, common, object=found, start=start, end=end)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def serve(connection: socket.socket, objects: Mapping[str, Object]) -> None:
    """Answer what comes on one connection until the client leaves."""
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for request in _requests(connection):
                _send(connection, request, answer(request, objects))
        except OSError:
            return


def _requests(connection: socket.socket) -> Iterator[Request]:
    """The requests of a connection, one after the other. Nothing that is answered here has a body."""
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            if not (received := connection.recv(65536)):
                return
            buffer += received
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        yield Request(method, parts.path, query, headers)


def _send(connection: socket.socket, request: Request, reply: Reply) -> None:
    headers = {**reply.headers, "Content-Length": str(len(reply.text) or reply.end - reply.start)}
    lines = [
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    if request.method == "HEAD":
        connection.sendall(head)
        return
    connection.sendall(head + reply.text, socket.MSG_MORE if reply.object else 0)
    at = reply.start
    while reply.object and at < reply.end:
        at += os.sendfile(connection.fileno(), reply.object.descriptor, at, reply.end - at)


def main() -> None:
    objects = read(Path(sys.argv[1]))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, objects), daemon=True).start()


if __name__ == "__main__":
    main()
