"""Hooks of MkDocs: anchors as on GitHub, files of the repository that pages link to, and nothing from other hosts."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from documentation import DOCS, LINK, ROOT, prose, slug, targets
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_REPOSITORY = "repository/"
_LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>|<link\b[^>]*>")
_FETCHED_LINK = re.compile(r"rel=[\"']?(?:stylesheet|preload|preconnect|icon)\b.*href=[\"']?(?:https?:)?//")


def on_config(config: Any) -> Any:
    """Anchors as on GitHub. `SITE_URL` is where the site will be."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, separator: slug(text)
    config.site_url = os.environ.get("SITE_URL") or config.site_url
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to outside of docs/: other pages with what these link to, and files as they are."""
    waiting = list(DOCS.rglob("*.md"))
    seen: set[Path] = set(waiting)
    while waiting:
        page = waiting.pop()
        for target in targets(page.read_text()):
            linked = _linked(page, target)
            if linked is None or linked in seen or linked.is_relative_to(DOCS):
                continue
            seen.add(linked)
            files.append(File.generated(config, _site_path(linked), content=linked.read_bytes()))
            if linked.suffix == ".md":
                waiting.append(linked)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to files of the repository to their copies in the site."""
    source = _source(page.file.src_uri)
    written = prose(markdown)

    def led(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        is_code = not written[found.start() : found.start() + 1].strip()
        if is_code or re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_sign, anchor = target.partition("#")
        linked = _linked(source, path)
        if linked is None:
            return text  # a folder without a page
        start = posixpath.dirname(page.file.src_uri)
        return f"[{text}]({posixpath.relpath(_site_path(linked), start or '.')}{hash_sign}{anchor})"

    return LINK.sub(led, markdown)


def on_post_build(config: Any) -> None:
    """Put each page's Markdown beside it, for llms.txt, and refuse pages that load something from another host."""
    site = Path(config.site_dir)
    for page in DOCS.rglob("*.md"):
        (site / page.relative_to(DOCS)).write_bytes(page.read_bytes())
    for path in site.rglob("*.html"):
        for found in _LOADED.finditer(path.read_text()):
            if not found[0].startswith("<link") or _FETCHED_LINK.search(found[0]):
                raise PluginError(f"{path.relative_to(site)} loads something from another host: {found[0]}")


def _linked(page: Path, target: str) -> Path | None:
    """The file that a link in a page leads to; None for a folder without a README, and for other hosts."""
    if re.match(r"[a-z]+:|#", target):
        return None
    path = (page.parent / target.partition("#")[0]).resolve()
    path = path / "README.md" if path.is_dir() else path
    if not path.is_file():
        # MkDocs says that it is missing.
        return path if path.is_relative_to(DOCS) else None
    return path


def _site_path(path: Path) -> str:
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    # The repository's first page is the site's.
    return "index.md" if path == ROOT / "README.md" else _REPOSITORY + path.relative_to(ROOT).as_posix()


def _source(site_path: str) -> Path:
    if site_path.startswith(_REPOSITORY):
        return ROOT / site_path.removeprefix(_REPOSITORY)
    return DOCS / site_path
