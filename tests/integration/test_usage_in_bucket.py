"""The ledger of usage in a bucket, through the death of a replica; and that keys are neither there nor in traces."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from click.testing import CliRunner

from benchmarks.processes import of_same_clusters, titled
from rayllm.access.usage import UsageEntry
from rayllm.cli.commands.keys import command
from tests.integration.service import DEMO, ROOT
from tests.integration.test_foreground import clean
from tests.integration.test_leaving import within
from tests.servers.process import free_port
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

pytestmark = pytest.mark.timeout(600)
BODY = {"model": "rayllm-demo", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.put("ledger", {})
        yield server


class Running:
    """`rayllm run` with keys and a ledger in a bucket."""

    def __init__(self, folder: Path, s3: S3Server) -> None:
        keys = ["--file", str(folder / "keys.yaml"), "create", "--name", "alice"]
        self.key = CliRunner().invoke(command, [*keys, "--label", "team=search"], catch_exceptions=False).stdout.strip()
        router = {"keys": str(folder / "keys.yaml"), "usage": "s3://ledger/usage"}
        args = {"llm_configs": [str(DEMO)], "router": router}
        application = {"name": "rayllm", "route_prefix": "/", "import_path": "rayllm:app", "args": args}
        path, port = folder / "serve.yaml", free_port()
        path.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application]}))
        environment = clean() | {
            "AWS_ENDPOINT_URL_S3": s3.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "RAYLLM_CACHE_DIR": str(folder / "cache"),
            # Spans are in the logs.
            "OTEL_TRACES_EXPORTER": "console",
        }
        self.folder = folder
        self.log = (folder / "log").open("w+")
        run = [sys.executable, "-m", "rayllm", "run", str(path), "--port", str(port)]
        self.process = subprocess.Popen(run, stdout=self.log, stderr=self.log, env=environment, cwd=ROOT)
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, headers={"authorization": f"Bearer {self.key}"}
        )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, Path(self.log.name).read_text()
        try:
            return self.http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self) -> dict[str, int]:
        """The usage that a reply tells, on a connection of its own: one whose replica is killed may be cut."""
        reply = self.http.post("/v1/chat/completions", json=BODY, headers={"connection": "close"})
        assert reply.status_code == 200, reply.text
        usage: dict[str, int] = reply.json()["usage"]
        return usage

    def used(self, query: str = "group_by=") -> list[dict[str, Any]]:
        reply = self.http.get(f"/v1/usage?{query}")
        return reply.json()["data"] if reply.status_code == 200 else []

    def replicas(self) -> list[psutil.Process]:
        """Of the model, in this cluster."""
        cluster = of_same_clusters(psutil.Process(self.process.pid).children(recursive=True))
        return [replica for replica in titled("ray::ServeReplica:rayllm:rayllm-demo") if replica in cluster]


@pytest.fixture(scope="module")
def running(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("usage"), s3)
    try:
        assert within(300, made.is_ready)
        yield made
    finally:
        made.http.close()
        made.process.terminate()
        made.process.wait(60)
        made.log.close()


def test_nothing_is_lost_or_counted_twice_when_a_replica_is_killed(running: Running, s3: S3Server) -> None:
    replicas = running.replicas()
    assert len(replicas) == 1
    told = [running.ask() for _ in range(5)]
    # At once: what a client has got is in the ledger by then.
    for replica in replicas:
        replica.kill()
    # A request sent before a dead process's sockets are closed is reset.
    psutil.wait_procs(replicas, timeout=60)
    # They are asked for the rest, once there is another: requests wait for it.
    told += [running.ask() for _ in range(5)]
    expected = {
        "requests": 10,
        "prompt_tokens": sum(each["prompt_tokens"] for each in told),
        "completion_tokens": sum(each["completion_tokens"] for each in told),
    }

    def is_whole() -> bool:
        rows = running.used()
        return bool(rows) and expected.items() <= rows[0].items()

    assert within(60, is_whole), running.used()
    [row] = running.used("group_by=label:team,key")
    assert (row["label:team"], row["key"], row["requests"]) == ("search", "alice", 10)
    listed = s3.client().list_objects_v2(Bucket="ledger")["Contents"]
    names = [each["Key"] for each in listed if each["Key"].endswith(".jsonl")]
    # One of each replica.
    assert len(names) == 2
    bodies = [s3.client().get_object(Bucket="ledger", Key=name)["Body"].read() for name in names]
    entries = [UsageEntry.parse(line) for line in b"".join(bodies).splitlines()]
    assert len({entry.id for entry in entries if entry}) == len(entries) == 10


def test_keys_are_in_no_trace_and_no_object(running: Running, s3: S3Server) -> None:
    in_url = running.http.get(f"/v1/models?api_key={running.key}", headers={"authorization": ""})
    assert in_url.status_code == 401
    assert running.http.post("/v1/chat/completions", json=BODY | {"model": "none"}).status_code == 404
    found = re.search(r"\(logs: (\S+)\)", Path(running.log.name).read_text())
    assert found
    logs = Path(found[1])

    def traces() -> bytes:
        return b"".join(path.read_bytes() for path in logs.rglob("*") if path.is_file())

    assert within(60, lambda: b'"rayllm.request_id"' in traces() and b'"error.type": "model_not_found"' in traces())
    objects = s3.client().list_objects_v2(Bucket="ledger")["Contents"]
    bodies = [s3.client().get_object(Bucket="ledger", Key=each["Key"])["Body"].read() for each in objects]
    files = [path.read_bytes() for path in running.folder.rglob("*") if path.is_file()]
    assert running.key.encode() not in b"".join([traces(), *bodies, *files])
