"""A server with the Hugging Face hub's protocol for models."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self
from urllib.parse import parse_qs, quote, unquote

from tests.servers.listener import Handler, Listener
from tests.servers.repository import File, Repository

_ID = r"(?P<id>[^/]+(?:/(?!(?:revision|tree|refs)(?:/|$))[^/]+)?)"
_RESOLVE = re.compile(rf"/{_ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
_CACHED = re.compile(rf"/api/resolve-cache/models/{_ID}/(?P<revision>[0-9a-f]{{40}})/(?P<path>.+)")
_API = re.compile(rf"/api/models/{_ID}(?:/(?P<what>revision|tree|refs)(?:/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?)?")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Seen:
    """A request, with header names in lower case."""

    method: str
    path: str  # with the query
    headers: dict[str, str]


class _RefusalError(Exception):
    """An error reply."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Code": code, "X-Error-Message": message, **headers}


class HubServer:
    """A context manager; repositories are in memory."""

    def __init__(self, *, resolve_cache: bool = False) -> None:
        self.resolve_cache = resolve_cache
        self.repositories: dict[str, Repository] = {}
        self._hub = Listener(partial(_Hub, self))
        self._cdn = Listener(partial(_Cdn, self))
        self.url = self._hub.url
        self.cdn_url = self._cdn.url
        self._requests: list[Seen] = []
        self._cdn_requests: list[Seen] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._hub.start()
        self._cdn.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hub.stop()
        self._cdn.stop()

    @property
    def requests(self) -> list[Seen]:
        """Requests to the hub."""
        with self._lock:
            return list(self._requests)

    @property
    def cdn_requests(self) -> list[Seen]:
        """Requests to the CDN's address."""
        with self._lock:
            return list(self._cdn_requests)

    def commit(self, repo_id: str, files: Mapping[str, bytes | Path], revision: str = "main") -> str:
        """Commit these files as the whole content of a branch, creating the repository if necessary; returns the
        commit's id.
        """
        return self._repository(repo_id).commit(files, revision)

    def tag(self, repo_id: str, name: str, revision: str = "main") -> None:
        """Tag the commit of a revision."""
        repository = self.repositories[repo_id]
        commit = repository.find(revision)
        assert commit is not None, revision
        repository.tags[name] = commit

    def label(self, repo_id: str, *labels: str) -> None:
        """Set the repository's `tags`, by which models are listed."""
        self._repository(repo_id).labels.extend(labels)

    def gate(self, repo_id: str, token: str) -> None:
        """Require a token for a repository's files."""
        self._repository(repo_id).token = token

    def note(self, handler: Handler, at_cdn: bool) -> None:
        """Record a request."""
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            (self._cdn_requests if at_cdn else self._requests).append(Seen(handler.command, handler.path, headers))

    def _repository(self, repo_id: str) -> Repository:
        with self._lock:
            return self.repositories.setdefault(repo_id, Repository(repo_id))


class _Serving(Handler):
    """Handles the requests of one connection, with range requests for files."""

    def __init__(self, server: HubServer, *args: object) -> None:
        self._hub = server
        super().__init__(*args)  # type: ignore[arg-type]

    def send_file(self, file: File, etag: str, headers: dict[str, str]) -> None:
        """Send a file or a range of it, if it matches the request's conditions."""
        headers = {**headers, "ETag": etag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if self.headers.get("if-match", etag) not in (etag, "*"):
            return self.reply(412, headers)
        if self.headers.get("if-none-match") in (etag, "*"):
            return self.reply(304, headers)
        asked = _RANGE.fullmatch(self.headers.get("range", ""))
        if asked is None or asked[0] == "bytes=-" or self.headers.get("if-range", etag) != etag:
            return self._send(200, file, 0, file.size, headers)
        start, end = int(asked[1] or max(0, file.size - int(asked[2] or 0))), file.size
        if asked[1] and asked[2]:
            end = min(int(asked[2]) + 1, file.size)
        if start >= end:
            return self.reply(416, {**headers, "Content-Range": f"bytes */{file.size}"})
        return self._send(206, file, start, end, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{file.size}"})

    def _send(self, status: int, file: File, start: int, end: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(end - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for piece in file.read(start, end):
                self.wfile.write(piece)


class _Hub(_Serving):
    def do_GET(self) -> None:
        self._hub.note(self, at_cdn=False)
        path, _, query = self.path.partition("?")
        try:
            if path == "/api/models":
                self._list(parse_qs(query))
            elif cached := _CACHED.fullmatch(path):
                self._resolve(**_unquoted(cached), cached=True)
            elif resolved := _RESOLVE.fullmatch(path):
                self._resolve(**_unquoted(resolved), cached=False)
            elif asked := _API.fullmatch(path):
                self._tell(**_unquoted(asked), query=parse_qs(query))
            else:
                self.reply(404, {})
        except _RefusalError as refusal:
            self.reply(refusal.status, refusal.headers, _json({"error": str(refusal)}))

    do_HEAD = do_GET

    def _list(self, query: dict[str, list[str]]) -> None:
        author, search = query.get("author", [""])[0], query.get("search", [""])[0]
        wanted = {label for given in query.get("filter", []) for label in given.split(",")}
        found = [
            repository.summary()
            for repository in list(self._hub.repositories.values())
            if repository.name.startswith(f"{author}/" if author else "")
            and search.lower() in repository.name.lower()
            and wanted <= set(repository.labels)
        ]
        self._json(found[: int(query.get("limit", ["1000"])[0])])

    def _tell(self, id: str, what: str, revision: str, path: str, query: dict[str, list[str]]) -> None:
        repository = self._repository(id)
        if what == "refs":
            return self._json(_refs(repository))
        commit = self._commit(repository, revision or "main")
        if what != "tree":
            return self._json(repository.info(commit, _is_on(query, "blobs")))
        entries = repository.tree(commit, path, _is_on(query, "recursive"))
        if path and not entries:
            _no_entry(commit, path)
        return self._json(entries)

    def _resolve(self, id: str, revision: str, path: str, cached: bool) -> None:
        repository = self._repository(id)
        self._let_in(repository)
        commit = self._commit(repository, revision)
        file = repository.commits[commit].get(path) or _no_entry(commit, path)
        headers = {"X-Repo-Commit": commit}
        if file.is_lfs:
            linked = {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
            headers |= linked | {"ETag": f'"{file.blob_id}"', "Location": self._cdn_location(id, commit, path, file)}
            return self.reply(302, headers, b"Found. Redirecting.")
        if self._hub.resolve_cache and not cached:
            location = f"/api/resolve-cache/models/{id}/{commit}/{quote(path, safe='')}"
            linked = {"X-Linked-Etag": f'"{file.blob_id}"', "X-Linked-Size": str(file.size)}
            return self.reply(307, headers | linked | {"Location": location}, b"Temporary Redirect.")
        return self.send_file(file, f'"{file.blob_id}"', headers)

    def _cdn_location(self, id: str, commit: str, path: str, file: File) -> str:
        return f"{self._hub.cdn_url}/cdn/{id}/{commit}/{quote(path)}?Expires=1800000000&Signature={file.sha256[:8]}"

    def _token(self) -> str | None:
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None

    def _repository(self, id: str) -> Repository:
        repository = self._hub.repositories.get(id)
        if repository is not None:
            return repository
        if self._token() is None:
            raise _RefusalError(401, "RepoNotFound", "Invalid username or password.")
        raise _RefusalError(404, "RepoNotFound", "Repository not found")

    def _let_in(self, repository: Repository) -> None:
        token = self._token()
        if repository.token is None or token == repository.token:
            return
        if token is None:
            message = (
                f"Access to model {repository.name} is restricted. You must have access to it and be authenticated"
            )
            raise _RefusalError(401, "GatedRepo", f"{message} to access it. Please log in.")
        message = f"Access to model {repository.name} is restricted and you are not in the authorized list."
        raise _RefusalError(403, "GatedRepo", message)

    def _commit(self, repository: Repository, revision: str) -> str:
        commit = repository.find(revision)
        if commit is None:
            raise _RefusalError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _json(self, answer: Any) -> None:
        self.reply(200, {"Content-Type": "application/json; charset=utf-8"}, _json(answer))


class _Cdn(_Serving):
    def do_GET(self) -> None:
        self._hub.note(self, at_cdn=True)
        asked = re.fullmatch(rf"/cdn/{_ID}/(?P<commit>[0-9a-f]{{40}})/(?P<path>.+)", self.path.partition("?")[0])
        if asked is None:
            return self.reply(403, {})
        file = self._hub.repositories[asked["id"]].commits[asked["commit"]][unquote(asked["path"])]
        return self.send_file(file, f'"{md5(file.sha256.encode(), usedforsecurity=False).hexdigest()}"', {})

    do_HEAD = do_GET


def _unquoted(match: re.Match[str]) -> dict[str, str]:
    return {name: unquote(value or "") for name, value in match.groupdict().items()}


def _is_on(query: dict[str, list[str]], name: str) -> bool:
    return query.get(name, ["false"])[0].lower() in ("true", "1")


def _no_entry(commit: str, path: str) -> NoReturn:
    raise _RefusalError(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": commit})


def _refs(repository: Repository) -> dict[str, Any]:
    branches = [_ref("heads", name, commit) for name, commit in repository.branches.items()]
    return {"branches": branches, "converts": [], "tags": [_ref("tags", *named) for named in repository.tags.items()]}


def _ref(kind: str, name: str, commit: str) -> dict[str, str]:
    return {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit}


def _json(answer: Any) -> bytes:
    return json.dumps(answer).encode()
