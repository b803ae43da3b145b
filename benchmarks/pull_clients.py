"""The clients that `benchmarks.pull` measures, each in a process of its own.

python -m benchmarks.pull_clients CLIENT ADDRESS FOLDER, where ADDRESS is `s3://bucket` or `gs://bucket`.

A client says `done` when the files can be used, and ends. Where the server is, is said by the variables that the
clients' libraries know themselves.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any
from urllib.parse import quote, urlsplit

# Libraries are imported where they are used: a client's memory and time are its own.

_THREADS = 8
_RANGE = 32 * 1024 * 1024
_STEP = 1024 * 1024


def rayllm(address: str, folder: Path) -> None:
    """What a replica does before its engine starts."""
    os.environ["RAYLLM_CACHE_DIR"] = str(folder)
    from rayllm.config import BucketSource
    from rayllm.sources import fetch

    fetch(BucketSource(bucket_uri=address), "benchmark")


def boto3(address: str, folder: Path) -> None:
    """One object after the other; boto3 itself fetches ten parts of each at once."""
    import boto3

    client, bucket = boto3.client("s3"), address.removeprefix("s3://")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page["Contents"]:
            client.download_file(bucket, entry["Key"], str(folder / entry["Key"]))


def google(address: str, folder: Path) -> None:
    """One object after the other, each by one request."""
    from google.cloud import storage

    client = storage.Client.create_anonymous_client()
    for blob in client.list_blobs(address.removeprefix("gs://")):
        blob.download_to_filename(str(folder / blob.name))


def receive(address: str, folder: Path) -> None:
    """The floor of reading: all ranges out of the sockets and nowhere else."""
    bucket, sizes, own = address.removeprefix("s3://"), _sizes(), local()

    def read(name: str, start: int, end: int) -> None:
        if not hasattr(own, "connection"):
            own.connection, own.buffer = _connect(), memoryview(bytearray(_STEP))
        path = f"/{bucket}/{quote(name)}"
        head = f"GET {path} HTTP/1.1\r\nhost: benchmark\r\nrange: bytes={start}-{end - 1}\r\n\r\n"
        own.connection.sendall(head.encode())
        _read(own.connection, own.buffer, end - start)

    _all_ranges(sizes, read)
    (folder / "sizes.json").write_text(json.dumps(sizes))


def write(address: str, folder: Path) -> None:
    """The floor of writing: zeros of the same sizes, to the same disk."""
    zeros = bytes(_STEP)
    sizes = _sizes()
    files = {name: os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o644) for name in sizes}

    def put(name: str, start: int, end: int) -> None:
        for at in range(start, end, _STEP):
            os.pwrite(files[name], zeros[: end - at], at)

    _all_ranges(sizes, put)


def _sizes() -> dict[str, int]:
    """What the server holds, as Google's listing says it."""
    with urllib.request.urlopen(f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/weights/o") as reply:
        return {item["name"]: int(item["size"]) for item in json.load(reply)["items"]}


def _all_ranges(sizes: dict[str, int], work: Callable[[str, int, int], None]) -> None:
    with ThreadPoolExecutor(_THREADS) as threads:
        jobs = [
            threads.submit(work, name, start, min(start + _RANGE, size))
            for name, size in sizes.items()
            for start in range(0, size, _RANGE)
        ]
        for job in jobs:
            job.result()


def _connect() -> socket.socket:
    server = urlsplit(os.environ["STORAGE_EMULATOR_HOST"])
    return socket.create_connection((server.hostname or "", server.port or 80))


def _read(connection: socket.socket, buffer: memoryview, size: int) -> None:
    """Receive one answer, whose body has to have this size, and forget it."""
    head = b""
    while b"\r\n\r\n" not in head:
        if not (received := connection.recv(4096)):
            raise RuntimeError("the server closed the connection")
        head += received
    head, _, body = head.partition(b"\r\n\r\n")
    if f"content-length: {size}" not in head.decode().lower().split("\r\n"):
        raise RuntimeError(f"another answer: {head!r}")
    left = size - len(body)
    while left:
        if not (count := connection.recv_into(buffer[:left])):
            raise RuntimeError("the server closed the connection")
        left -= count


CLIENTS: dict[str, Callable[[str, Path], Any]] = {
    "rayllm": rayllm,
    "boto3": boto3,
    "google": google,
    "receive": receive,
    "write": write,
}


def main() -> None:
    client, address, folder = sys.argv[1:]
    CLIENTS[client](address, Path(folder))
    print("done", flush=True)


if __name__ == "__main__":
    main()
