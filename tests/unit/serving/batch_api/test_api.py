"""The Files and Batches APIs, through OpenAI's own client."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from openai.types import Batch, FileObject
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.access import Caller
from rayllm.config import BatchesConfig
from rayllm.serving.batch_api.service import batch_service
from rayllm.serving.batch_api.storage.stores import open_stores
from rayllm.serving.router.http.errors import install_error_handlers
from tests.unit.serving.batch_api.work import Runners

LIMIT = 10_000
REQUEST = {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "a"}}
LINES = (json.dumps(REQUEST) + "\n").encode()
UNKNOWN_FILE, UNKNOWN_BATCH = "file-" + "0" * 32, "batch_" + "0" * 32
HOSTILE = ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "file-", "file-%00", "x" * 3000, "file-" + "0" * 31 + "%0a"]


class Service:
    """The routes of one router behind an HTTP server, and its runners."""

    def __init__(
        self,
        config: BatchesConfig | None,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        callers: dict[str, Caller] | None = None,
    ) -> None:
        self.runners = Runners(open_stores(config.storage if config else ""))
        routes, self.scheduler = batch_service(config, self.runners.start, hosts, callers is not None)
        self.app = FastAPI(openapi_url=None)
        self.app.router.routes.extend(routes)
        install_error_handlers(self.app)
        if callers is not None:
            self.app.add_middleware(ByKey, callers)

    def client(self, key: str) -> AsyncOpenAI:
        """A client with a key."""
        return self.openai.with_options(api_key=key)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Service]:
        server = uvicorn.Server(uvicorn.Config(self.app, port=0, log_level="error", lifespan="off"))
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        if self.scheduler:
            self.scheduler.start()
        try:
            async with (
                httpx.AsyncClient(base_url=url) as self.http,
                AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as self.openai,
            ):
                yield self
        finally:
            if self.scheduler:
                self.scheduler.stop()
            server.should_exit = server.force_exit = True
            await task


class ByKey:
    """ASGI middleware that puts the caller into the scope, as the router's does."""

    def __init__(self, app: ASGIApp, callers: dict[str, Caller]) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = Headers(scope=scope)["authorization"].removeprefix("Bearer ")
        await self._app({**scope, "user": self._callers[key]}, receive, send)


class BodyWatch:
    """ASGI middleware that sets an event when the application has processed `size` bytes of a body."""

    def __init__(self, app: ASGIApp, size: int, has_arrived: asyncio.Event) -> None:
        self._app = app
        self._size = size
        self._has_arrived = has_arrived

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        processed = 0

        async def watched() -> Message:
            nonlocal processed
            # Whoever asks for the next message has processed the one before.
            if processed >= self._size:
                self._has_arrived.set()
            message = await receive()
            processed += len(message.get("body", b""))
            return message

        await self._app(scope, watched, send)


@pytest.fixture
async def service(storage: str) -> AsyncIterator[Service]:
    async with Service(BatchesConfig(storage=storage, max_file_bytes=LIMIT)).listening() as service:
        yield service


@pytest.fixture
def client(service: Service) -> AsyncOpenAI:
    return service.openai


async def upload(client: AsyncOpenAI, content: bytes = LINES, purpose: Any = "batch", **options: Any) -> FileObject:
    return await client.files.create(file=("requests.jsonl", content), purpose=purpose, **options)


async def create(client: AsyncOpenAI, **options: Any) -> Batch:
    given: dict[str, Any] = {"endpoint": "/v1/embeddings", "completion_window": "24h", **options}
    if "input_file_id" not in given:
        given["input_file_id"] = (await upload(client)).id
    return await client.batches.create(**given)


async def ended(client: AsyncOpenAI, batch_id: str) -> Batch:
    for _ in range(1000):
        batch = await client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        await asyncio.sleep(0.01)
    raise AssertionError(batch)


def error_fields(error: openai.APIStatusError) -> tuple[int, str | None, str | None]:
    body = error.body
    assert isinstance(body, dict)
    assert body.keys() == {"message", "type", "param", "code"}
    return error.status_code, body["param"], body["code"]


async def test_a_file_comes_and_goes(client: AsyncOpenAI) -> None:
    content = b"\x00\xff" * 2000
    file = await client.files.create(
        file=("my/dir/naïve file.bin", io.BytesIO(content)),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.object, file.bytes, file.purpose, file.status) == ("file", 4000, "user_data", "processed")
    assert file.filename == "naïve file.bin"
    assert file.expires_at == file.created_at + 3600
    assert await client.files.retrieve(file.id) == file
    answer = await client.files.content(file.id)
    assert answer.content == content
    assert answer.response.headers["content-length"] == "4000"
    assert "filename*=UTF-8''na%C3%AFve%20file.bin" in answer.response.headers["content-disposition"]
    deleted = await client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for use in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await use(file.id)
        assert error_fields(caught.value) == (404, "file_id", "not_found")


@pytest.mark.parametrize("purpose", ["assistants", "batch", "fine-tune", "vision", "user_data", "evals"])
async def test_purposes(client: AsyncOpenAI, purpose: str) -> None:
    assert (await upload(client, purpose=purpose)).purpose == purpose


async def test_files_are_listed_page_by_page(client: AsyncOpenAI) -> None:
    files = [await upload(client, purpose=("batch", "vision")[number % 2]) for number in range(7)]
    ids = sorted((file.id for file in files), reverse=True)
    first = await client.files.list(limit=3)
    assert ([file.id for file in first.data], first.has_more) == (ids[:3], True)
    assert [file.id async for file in client.files.list(limit=3)] == ids
    assert [file.id async for file in client.files.list(limit=2, order="asc")] == ids[::-1]
    assert [file.id async for file in client.files.list(after=ids[4])] == ids[5:]
    assert {file.id async for file in client.files.list(purpose="vision", limit=1)} == {f.id for f in files[1::2]}
    assert (await client.files.list(purpose="evals")).data == []


async def test_a_whole_list_says_where_it_begins_and_ends(service: Service) -> None:
    await upload(service.openai)
    listed = (await service.http.get("/v1/files")).json()
    assert listed == {
        "object": "list",
        "data": listed["data"],
        "first_id": listed["data"][0]["id"],
        "last_id": listed["data"][-1]["id"],
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({}, "file"),
        ({"purpose": "batch"}, "file"),
        ({"purpose": "batch", "file": "text"}, "file"),
    ],
)
async def test_a_form_without_a_file_is_refused(service: Service, form: dict[str, str], param: str) -> None:
    answer = await service.http.post("/v1/files", files={name: (None, value) for name, value in form.items()} or None)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in (param, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "batch_output"}, "purpose"),
        ({"purpose": "batch", "colour": "red"}, "colour"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 5000},
            "expires_after[seconds]",
        ),
        ({"purpose": "batch", "expires_after[anchor]": "x", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after[seconds]",
        ),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "2592001"},
            "expires_after[seconds]",
        ),
    ],
)
async def test_a_wrong_form_is_refused(service: Service, fields: dict[str, str], param: str, storage: str) -> None:
    answer = await service.http.post("/v1/files", files={"file": ("a", b"x")}, data=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not [path for path in Path(storage).rglob("*") if path.is_file()]


async def test_no_form_at_all_is_refused(service: Service) -> None:
    for body, kind in (
        (b"{}", "application/json"),
        (b"nonsense", "multipart/form-data; boundary=x"),
        (b"", "multipart/form-data"),
    ):
        answer = await service.http.post("/v1/files", content=body, headers={"content-type": kind})
        assert answer.status_code == 400
        assert "multipart form" in answer.json()["error"]["message"]


async def test_an_empty_file_is_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await upload(client, b"")
    assert error_fields(caught.value) == (400, "file", None)


async def test_a_file_may_be_so_large_and_no_larger(client: AsyncOpenAI, storage: str) -> None:
    assert (await upload(client, b"x" * LIMIT)).bytes == LIMIT
    # Just above, as the Content-Length header shows.
    for size in (LIMIT + 1, LIMIT + 200_000):
        with pytest.raises(openai.APIStatusError) as caught:
            await upload(client, b"x" * size)
        assert error_fields(caught.value) == (413, "file", "request_too_large")
        assert f"{LIMIT} bytes (router.batches.max_file_bytes)" in caught.value.message
    assert len(list(Path(storage, "contents").iterdir())) == 1


async def test_an_upload_that_does_not_tell_its_length_is_cut_off(service: Service, storage: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield b"x" * 10_000

    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = await service.http.post("/v1/files", content=pieces(), headers=headers)
    assert answer.status_code == 413
    assert not Path(storage, "contents").exists()


async def test_a_batch_from_upload_to_answers(client: AsyncOpenAI) -> None:
    file = await upload(client)
    made = await create(client, input_file_id=file.id, metadata={"for": "test"})
    assert (made.object, made.status, made.endpoint) == ("batch", "validating", "/v1/embeddings")
    assert (made.input_file_id, made.completion_window, made.metadata) == (file.id, "24h", {"for": "test"})
    assert made.expires_at == made.created_at + 86400
    batch = await ended(client, made.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 1, "completed": 1, "failed": 0}
    assert batch.output_file_id is not None
    assert (await client.files.content(batch.output_file_id)).content == LINES.upper()
    output = await client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output"
    assert [found.id async for found in client.files.list(purpose="batch_output")] == [output.id]


async def test_answers_may_be_kept_for_a_time(client: AsyncOpenAI) -> None:
    made = await create(client, output_expires_after={"anchor": "created_at", "seconds": 3600})
    batch = await ended(client, made.id)
    output = await client.files.retrieve(str(batch.output_file_id))
    assert output.expires_at == output.created_at + 3600


async def test_a_faulty_file_fails_the_batch(client: AsyncOpenAI) -> None:
    file = await upload(client, LINES + b"nonsense\n")
    batch = await ended(client, (await create(client, input_file_id=file.id)).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [("invalid_json_line", 2)]


async def test_batches_are_listed_page_by_page(client: AsyncOpenAI) -> None:
    file = await upload(client)
    batches = [await create(client, input_file_id=file.id) for _ in range(5)]
    ids = sorted((batch.id for batch in batches), reverse=True)
    first = await client.batches.list(limit=2)
    assert ([batch.id for batch in first.data], first.has_more) == (ids[:2], True)
    assert [batch.id async for batch in client.batches.list(limit=2)] == ids
    assert [batch.id async for batch in client.batches.list(after=ids[2])] == ids[3:]


async def test_a_running_batch_is_cancelled(client: AsyncOpenAI, service: Service) -> None:
    go_on, stopped = threading.Event(), service.runners.stopped
    service.runners.pause = lambda: (go_on.wait(60), stopped.wait(60), None)[2]
    made = await create(client)
    while (await client.batches.retrieve(made.id)).status != "in_progress":
        await asyncio.sleep(0.01)
    cancelling = await client.batches.cancel(made.id)
    assert cancelling.status == "cancelling"
    assert cancelling.cancelling_at is not None
    assert (await client.batches.cancel(made.id)).status == "cancelling"
    # The input is still needed, for all that the service knows.
    with pytest.raises(openai.ConflictError) as caught:
        await client.files.delete(made.input_file_id)
    assert error_fields(caught.value) == (409, "file_id", "conflict")
    assert made.id in caught.value.message
    go_on.set()
    assert (await ended(client, made.id)).status == "cancelled"
    await client.files.delete(made.input_file_id)


async def test_what_has_ended_cannot_be_cancelled(client: AsyncOpenAI) -> None:
    batch = await ended(client, (await create(client)).id)
    with pytest.raises(openai.ConflictError) as caught:
        await client.batches.cancel(batch.id)
    assert error_fields(caught.value) == (409, "batch_id", "conflict")
    # So that the client does not ask again and again.
    assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("options", "status", "param"),
    [
        ({"input_file_id": UNKNOWN_FILE}, 404, "input_file_id"),
        ({"input_file_id": "../batches/x"}, 404, "input_file_id"),
        ({"endpoint": "/v1/images/generations"}, 400, "endpoint"),
        ({"completion_window": "a day"}, 400, "completion_window"),
        ({"metadata": {"k" * 65: "v"}}, 400, "metadata"),
        ({"extra_body": {"priority": "high"}}, 400, "priority"),
    ],
)
async def test_a_wrong_batch_is_refused(client: AsyncOpenAI, options: dict[str, Any], status: int, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await create(client, **options)
    assert error_fields(caught.value)[:2] == (status, param)
    assert (await client.batches.list()).data == []


async def test_a_batch_is_made_of_a_file_for_batches(client: AsyncOpenAI) -> None:
    file = await upload(client, purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="uploaded for `user_data`") as caught:
        await create(client, input_file_id=file.id)
    assert error_fields(caught.value)[:2] == (400, "input_file_id")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"metadata": NaN}', b"x" * 70_000])
async def test_a_body_that_is_none_is_refused(service: Service, body: bytes) -> None:
    answer = await service.http.post("/v1/batches", content=body)
    assert answer.status_code in (400, 413)
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_unknown_ids(client: AsyncOpenAI) -> None:
    for use, name, param in (
        (client.files.retrieve, UNKNOWN_FILE, "file_id"),
        (client.files.content, UNKNOWN_FILE, "file_id"),
        (client.files.delete, UNKNOWN_FILE, "file_id"),
        (client.batches.retrieve, UNKNOWN_BATCH, "batch_id"),
        (client.batches.cancel, UNKNOWN_BATCH, "batch_id"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await use(name)
        assert error_fields(caught.value) == (404, param, "not_found")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files/{}"),
        ("GET", "/v1/files/{}/content"),
        ("DELETE", "/v1/files/{}"),
        ("GET", "/v1/batches/{}"),
        ("POST", "/v1/batches/{}/cancel"),
    ],
)
async def test_hostile_ids_lead_nowhere(service: Service, name: str, method: str, path: str) -> None:
    answer = await service.http.request(method, path.format(name))
    assert answer.status_code in (404, 405)
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        ("/v1/files", "limit=10001", "limit"),
        ("/v1/files", "after=../x", "after"),
        ("/v1/files", "order=random", "order"),
        ("/v1/batches", "limit=101", "limit"),
        ("/v1/batches", f"after={UNKNOWN_FILE}", "after"),
    ],
)
async def test_a_wrong_query_is_refused(service: Service, path: str, query: str, param: str) -> None:
    answer = await service.http.get(f"{path}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_storage_that_cannot_be_reached(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    async with Service(BatchesConfig(storage=str(tmp_path / "file"))).listening() as service:
        answer = await service.http.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    # The log alone says where that is.
    assert str(tmp_path) not in answer.text
    assert str(tmp_path) in caplog.text


async def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path, full_disk: Callable[[], None]) -> None:
    async with Service(BatchesConfig(storage=str(tmp_path))).listening() as service:
        kept = await service.http.post("/v1/files", files={"file": ("a", b"{}")}, data={"purpose": "batch"})
        before = sorted(tmp_path.rglob("*"))
        full_disk()
        answer = await service.http.post(
            "/v1/files", files={"file": ("a", b"x" * 3_000_000)}, data={"purpose": "batch"}
        )
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert sorted(tmp_path.rglob("*")) == before
        # What was there can be read, and deleted to make room.
        path = f"/v1/files/{kept.json()['id']}"
        assert (await service.http.get(f"{path}/content")).content == b"{}"
        assert (await service.http.delete(path)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/x", "/v1/files/x/content", "/v1/batches", "/v1/batches/x"])
async def test_a_service_without_storage_says_what_to_set(path: str) -> None:
    async with Service(None).listening() as service:
        for method in ("GET", "POST", "DELETE"):
            answer = await service.http.request(method, path)
            assert answer.status_code == 404
            assert "set `router.batches.storage`" in answer.json()["error"]["message"]


@pytest.mark.parametrize("public", ["0.0.0.0", "::", "10.0.0.1", "example.com"])
async def test_where_others_can_call_there_are_no_files_unless_asked_for(storage: str, public: str) -> None:
    hosts = ("127.0.0.1", public)
    async with Service(BatchesConfig(storage=storage), hosts).listening() as closed:
        for path in ("/v1/files", "/v1/files/x/content", "/v1/batches"):
            answer = await closed.http.get(path)
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "permission_denied"
            assert f"listens on {public}," in answer.json()["error"]["message"]
            assert "`router.keys`, or with `router.batches.allow_remote: true`" in answer.json()["error"]["message"]
        with pytest.raises(openai.PermissionDeniedError):
            await upload(closed.openai)
    async with Service(BatchesConfig(storage=storage, allow_remote=True), hosts).listening() as opened:
        assert (await upload(opened.openai)).bytes == len(LINES)


CALLERS = {
    "alice": Caller("alice", "team"),
    "carol": Caller("carol", "team"),
    "bob": Caller("bob", "bob"),
    "root": Caller("root", "root", is_admin=True),
    "admin": Caller("admin", is_admin=True),
}


@pytest.fixture
async def keyed(storage: str) -> AsyncIterator[Service]:
    async with Service(BatchesConfig(storage=storage), ("0.0.0.0",), CALLERS).listening() as service:
        yield service


async def test_files_are_their_tenants(keyed: Service) -> None:
    file = await upload(keyed.client("alice"))
    seen = {name: [each.id async for each in keyed.client(name).files.list()] for name in CALLERS}
    assert seen == {"alice": [file.id], "carol": [file.id], "bob": [], "root": [file.id], "admin": [file.id]}
    assert "tenant" not in (await keyed.client("carol").files.retrieve(file.id)).to_dict()
    missing = await answer_of(keyed.client("bob").files.retrieve(UNKNOWN_FILE))
    for attempt in ("retrieve", "content", "delete"):
        refused = await answer_of(getattr(keyed.client("bob").files, attempt)(file.id))
        assert refused == missing.replace(UNKNOWN_FILE, file.id)
    await keyed.client("carol").files.delete(file.id)


async def test_batches_are_their_tenants(keyed: Service) -> None:
    alice, bob = keyed.client("alice"), keyed.client("bob")
    batch = await create(alice)
    assert not {"tenant", "key"} & batch.to_dict().keys()
    done = await ended(keyed.client("carol"), batch.id)
    assert [each.id async for each in bob.batches.list()] == []
    assert [each.id async for each in bob.files.list()] == []
    assert [each.id async for each in keyed.client("root").batches.list()] == [batch.id]
    missing = await answer_of(bob.batches.retrieve(UNKNOWN_BATCH))
    for attempt in ("retrieve", "cancel"):
        assert await answer_of(getattr(bob.batches, attempt)(batch.id)) == missing.replace(UNKNOWN_BATCH, batch.id)
    assert "There is no file" in await answer_of(create(bob, input_file_id=batch.input_file_id))
    assert done.output_file_id
    assert (await keyed.client("carol").files.content(done.output_file_id)).content
    assert "There is no file" in await answer_of(bob.files.content(done.output_file_id))


async def test_who_deletes_the_file_of_anothers_batch_does_not_learn_of_it(keyed: Service) -> None:
    keyed.runners.pause = threading.Event().wait  # type: ignore[assignment]
    batch = await create(keyed.client("alice"))
    assert "There is no file" in await answer_of(keyed.client("bob").files.delete(batch.input_file_id))
    assert batch.id in await answer_of(keyed.client("carol").files.delete(batch.input_file_id))


@pytest.mark.parametrize(("name", "key"), [("alice", "alice"), ("root", "root"), ("admin", "")])
async def test_a_batch_is_sent_with_its_senders_key(keyed: Service, name: str, key: str) -> None:
    batch = await create(keyed.client(name))
    assert keyed.runners.stores.batches.get(batch.id).key == key


async def answer_of(call: Any) -> str:
    """The message of a call that is refused."""
    with pytest.raises(openai.APIStatusError) as refused:
        await call
    return refused.value.message


async def test_so_many_files_are_kept(storage: str) -> None:
    async with Service(BatchesConfig(storage=storage, max_files=2)).listening() as service:
        first, _ = await upload(service.openai), await upload(service.openai)
        refused = await service.http.post("/v1/files", files={"file": ("x", LINES)}, data={"purpose": "batch"})
        assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
        assert refused.json()["error"]["code"] == "insufficient_quota"
        assert "2 files are kept (router.batches.max_files): delete files" in refused.json()["error"]["message"]
        with pytest.raises(openai.RateLimitError, match="max_files"):
            await create(service.openai, input_file_id=first.id)
        await service.openai.files.delete(first.id)
        await upload(service.openai)


async def test_so_many_bytes_are_kept(storage: str) -> None:
    async with Service(BatchesConfig(storage=storage, max_total_bytes=10_000)).listening() as service:
        first = await upload(service.openai, b"{" * 6000)
        with pytest.raises(openai.RateLimitError, match=r"10000 bytes of files \(router.batches.max_total_bytes\)"):
            await upload(service.openai, b"{" * 6000)
        await upload(service.openai, b"{" * 3000)
        await service.openai.files.delete(first.id)
        await upload(service.openai, b"{" * 6000)


async def test_uploads_under_way_count_and_leave_nothing_when_the_client_goes(storage: str) -> None:
    uploads = Service(BatchesConfig(storage=storage, max_total_bytes=10_000))
    half_has_arrived, go = asyncio.Event(), asyncio.Event()
    uploads.app.add_middleware(BodyWatch, size=6000, has_arrived=half_has_arrived)
    async with uploads.listening() as service:
        boundary = {"content-type": "multipart/form-data; boundary=b"}
        begin = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'

        async def half() -> AsyncIterator[bytes]:
            yield begin + b"x" * 6000
            await go.wait()
            raise ConnectionError("the client goes")

        leaving = asyncio.create_task(service.http.post("/v1/files", content=half(), headers=boundary))
        await half_has_arrived.wait()
        assert (await service.http.post("/v1/files", files=form(6000))).status_code == 429
        go.set()
        with pytest.raises(ConnectionError):
            await leaving
        async with asyncio.timeout(10):
            while (await service.http.post("/v1/files", files=form(9000))).status_code != 200:
                await asyncio.sleep(0.01)
    assert len(list(Path(storage, "contents").iterdir())) == 1


async def test_unfinished_and_ended_batches_are_limited(storage: str) -> None:
    go_on = threading.Event()
    async with Service(BatchesConfig(storage=storage, max_batches=2)).listening() as service:
        service.runners.pause = lambda: (go_on.wait(10), None)[1]
        made = [await create(service.openai) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match=r"2 batches have not ended \(router.batches.max_batches\)"):
            await create(service.openai)
        go_on.set()
        for batch in made:
            await ended(service.openai, batch.id)
        for _ in range(3):
            made.append(await ended(service.openai, (await create(service.openai)).id))
        listed = {batch.id for batch in (await service.openai.batches.list()).data}
        assert len(listed) <= 3
        assert made[-1].id in listed
        with pytest.raises(openai.NotFoundError):
            await service.openai.batches.retrieve(made[0].id)


def form(size: int) -> dict[str, Any]:
    """A form with a file of so many bytes."""
    return {"file": ("x", b"x" * size), "purpose": (None, "batch")}
