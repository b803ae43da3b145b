"""A hub repository: commits, branches and tags, and their files."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any

LFS_SIZE = 10 * 1024 * 1024
_LFS_NAMES = re.compile(r"\.(safetensors|bin|gguf|pt|pth|onnx|msgpack|h5|npz|model|zip|gz)$")
_PIECE = 1024 * 1024


@dataclass(frozen=True)
class File:
    """A file's content; a file on disk is read on demand, and must not change."""

    name: str
    content: bytes | Path

    @cached_property
    def size(self) -> int:
        """In bytes."""
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)

    @cached_property
    def is_lfs(self) -> bool:
        """Whether git stores a pointer to it: by name or size, or because it is binary."""
        return bool(_LFS_NAMES.search(self.name)) or self.size > LFS_SIZE or b"\0" in b"".join(self.read(0, 8000))

    @cached_property
    def sha256(self) -> str:
        """Of the content."""
        digest = sha256()
        for piece in self.read(0, self.size):
            digest.update(piece)
        return digest.hexdigest()

    @cached_property
    def pointer(self) -> bytes:
        """What git holds of a file in LFS."""
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @cached_property
    def blob_id(self) -> str:
        """Git's id of the content or the pointer."""
        size = len(self.pointer) if self.is_lfs else self.size
        digest = sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        for piece in [self.pointer] if self.is_lfs else self.read(0, self.size):
            digest.update(piece)
        return digest.hexdigest()

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` to before `end`, in pieces."""
        if isinstance(self.content, bytes):
            yield self.content[start:end]
            return
        with self.content.open("rb") as file:
            file.seek(start)
            while start < end and (piece := file.read(min(_PIECE, end - start))):
                start += len(piece)
                yield piece


@dataclass
class Repository:
    """A model's repository."""

    name: str
    labels: list[str] = field(default_factory=list)
    token: str | None = None
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def commit(self, files: Mapping[str, bytes | Path], branch: str) -> str:
        """Make these files a branch's content and return the commit's id."""
        tree = {name: File(name, files[name]) for name in sorted(files)}
        with self._lock:
            seed = [self.name, branch, str(len(self.commits)), *(file.blob_id for file in tree.values())]
            commit = sha1("\n".join(seed).encode(), usedforsecurity=False).hexdigest()
            self.commits[commit] = tree
            self.branches[branch] = commit
        return commit

    def find(self, revision: str) -> str | None:
        """The commit of a branch, a tag or a prefix of an id."""
        for named in (self.branches, self.tags):
            for name in (revision, revision.removeprefix("refs/heads/"), revision.removeprefix("refs/tags/")):
                if name in named:
                    return named[name]
        if not re.fullmatch("[0-9a-f]{7,40}", revision):
            return None
        return next((commit for commit in self.commits if commit.startswith(revision)), None)

    def info(self, commit: str, blobs: bool) -> dict[str, Any]:
        """The hub API's object of the repository at a commit."""
        return {
            **self.summary(),
            "sha": commit,
            "siblings": [_sibling(file, blobs) for file in self.commits[commit].values()],
        }

    def summary(self) -> dict[str, Any]:
        """The hub API's object of the repository in a list."""
        return {
            "_id": sha1(self.name.encode(), usedforsecurity=False).hexdigest()[:24],
            "id": self.name,
            "modelId": self.name,
            "author": self.name.partition("/")[0] if "/" in self.name else None,
            "sha": self.branches.get("main"),
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "private": False,
            "gated": "manual" if self.token else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": self.labels,
        }

    def tree(self, commit: str, under: str, recursive: bool) -> list[dict[str, Any]]:
        """The hub API's listing of a folder."""
        prefix = f"{under}/" if under else ""
        entries: dict[str, dict[str, Any]] = {}
        for name, file in self.commits[commit].items():
            if not name.startswith(prefix):
                continue
            folders = name.removeprefix(prefix).split("/")[:-1]
            for depth in range(1, len(folders) + 1 if recursive else min(len(folders), 1) + 1):
                path = prefix + "/".join(folders[:depth])
                oid = sha1(path.encode(), usedforsecurity=False).hexdigest()
                entries[path] = {"type": "directory", "oid": oid, "size": 0, "path": path}
            if recursive or not folders:
                entries[name] = _entry(file)
        return list(entries.values())


def _sibling(file: File, blobs: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"rfilename": file.name}
    if blobs:
        told |= {"blobId": file.blob_id, "size": file.size}
        if file.is_lfs:
            told["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
    return told


def _entry(file: File) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "file", "oid": file.blob_id, "size": file.size, "path": file.name}
    if file.is_lfs:
        told["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": len(file.pointer)}
    return told
