"""The page at `/ui`: what its routes answer, and who may ask for it."""

from __future__ import annotations

import gzip
import re
from typing import cast

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp

from rayllm.access import Keyring
from rayllm.core.shares import Shares
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.access.gates import ApiKeyGate
from rayllm.serving.router.http.admin_keys import AdminKeys
from rayllm.serving.router.http.errors import install_error_handlers
from rayllm.serving.router.ui.pages import STATIC, page_routes

# What a browser fetches before the page can be used.
MAX_BYTES = 300 * 1024
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def router() -> FastAPI:
    app = FastAPI(routes=list(page_routes()))
    install_error_handlers(app)
    return app


def client(app: ASGIApp | None = None, **headers: str) -> httpx.AsyncClient:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app or router()), base_url="http://x", headers=named)


def assets() -> list[str]:
    """The files that the page asks for, as its own addresses say."""
    index = (STATIC / "index.html").read_text()
    return re.findall(r'(?:src|href)="([^"]+)"', index)


async def test_the_page_comes_with_its_policy() -> None:
    async with client() as browser:
        reply = await browser.get("/ui")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    # Names of other files are in it: an old one would ask for files that are gone.
    assert reply.headers["cache-control"] == "no-cache"


async def test_its_files_are_kept_for_good_and_have_their_types() -> None:
    types = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    names = assets()
    assert sorted(name[name.rindex(".") :] for name in names) == sorted(types)
    async with client() as browser:
        for name in names:
            reply = await browser.get(f"/{name}")
            assert (reply.status_code, reply.headers["content-type"]) == (200, types[name[name.rindex(".") :]])
            assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert reply.headers["content-security-policy"] == POLICY
            assert re.search(r"-[A-Z0-9]{8}\.", name), "the name does not change with the content"


def test_nothing_is_inline_and_nothing_is_fetched_from_elsewhere() -> None:
    index = (STATIC / "index.html").read_text()
    assert all(name.startswith("ui/") for name in assets())
    assert not re.search(r"<style|\sstyle=|\son\w+=", index)
    assert re.findall(r"<script[^>]*>(.*?)</script>", index, re.DOTALL) == [""]


async def test_the_first_load_is_small() -> None:
    async with client(accept_encoding="gzip") as browser:
        replies = [await browser.get(path) for path in ("/ui", *(f"/{name}" for name in assets()))]
    assert {reply.headers["content-encoding"] for reply in replies} == {"gzip"}
    assert sum(int(reply.headers["content-length"]) for reply in replies) <= MAX_BYTES


async def test_a_client_that_does_not_decompress_gets_it_as_it_is() -> None:
    async with client(accept_encoding="identity") as plain, client(accept_encoding="gzip, br") as browser:
        whole, small = await plain.get("/ui"), await browser.get("/ui")
    assert "content-encoding" not in whole.headers
    assert whole.headers["vary"] == small.headers["vary"] == "accept-encoding"
    assert whole.content == small.content == (STATIC / "index.html").read_bytes()
    assert int(small.headers["content-length"]) == len(gzip.compress(whole.content, mtime=0))


async def test_head_has_the_headers_alone() -> None:
    async with client() as browser:
        reply = await browser.head("/ui")
    assert (reply.status_code, reply.headers["content-security-policy"]) == (200, POLICY)


async def test_below_a_slash_the_page_is_elsewhere() -> None:
    async with client() as browser:
        reply = await browser.get("/ui/")
        assert (reply.status_code, str(reply.next_request and reply.next_request.url)) == (308, "http://x/ui")


@pytest.mark.parametrize("path", ["/ui/none.js", "/ui/build.json", "/ui/..%2Fpages.py", "/ui/LICENSES.txt/", "/uix"])
async def test_other_paths_are_404(path: str) -> None:
    async with client() as browser:
        reply = await browser.get(path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


async def test_it_takes_no_posts() -> None:
    async with client() as browser:
        reply = await browser.post("/ui")
    assert (reply.status_code, set(reply.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


class NoKeys:
    """Credentials without a valid key."""

    issuer = None
    keyring = Keyring(b"s" * 32, [])


def gated(open_paths: list[str]) -> ApiKeyGate:
    shares = Shares("requests", "setting", 100, 1)
    return ApiKeyGate(router(), cast(Credentials, NoKeys()), AdminKeys([]), print, shares, open_paths)


async def test_with_keys_the_page_needs_none_and_everything_else_does() -> None:
    async with client(gated([route.path for route in page_routes()])) as browser:
        for path in ("/ui", "/ui/", *(f"/{name}" for name in assets())):
            assert (await browser.get(path)).status_code in (200, 308), path
        for path in ("/ui/none.js", "/ui/../v1/models", "/ui;/v1/models", "/v1/models", "/ui/ui"):
            assert (await browser.get(path)).status_code == 401, path


async def test_where_the_page_is_off_its_paths_are_like_any_other() -> None:
    async with client(gated([])) as browser:
        assert (await browser.get("/ui")).status_code == 401
