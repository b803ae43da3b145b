"""The pages of the documentation: their order, links, anchors and blocks of code, and llms.txt.

Needs only PyYAML, so that tests and the build of the site share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^( *)(`{3,})([\w-]*)(?: title=\"([^\"\n]*)\")?\n(.*?)^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)
_LLMS_HEAD = """\
# RayLLM

> RayLLM turns a Ray cluster into an OpenAI-compatible LLM service: one YAML file per model and one command serve many
> models, LoRA adapters and replicas behind one address. Replicas run vLLM.
"""


class Block(NamedTuple):
    """A block of code: its language and title ("" without one), its text, and the number of its first line."""

    language: str
    code: str
    line: int
    title: str


def site() -> dict[str, Any]:
    """mkdocs.yml."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return config


def sections() -> list[tuple[str, list[str]]]:
    """The navigation: sections with their pages, in order."""
    return [(title, list(_pages(below))) for entry in site()["nav"] for title, below in entry.items()]


def _pages(entries: Any) -> Iterator[str]:
    for entry in [entries] if isinstance(entries, str) else entries:
        yield from [entry] if isinstance(entry, str) else _pages(next(iter(entry.values())))


def blocks(text: str) -> list[Block]:
    """The fenced blocks of code of a page."""
    return [
        Block(found[3], _dedented(found[5], len(found[1])), text.count("\n", 0, found.start()) + 1, found[4] or "")
        for found in _FENCE.finditer(text)
    ]


def _dedented(code: str, width: int) -> str:
    return "".join(line[width:] if not line[:width].strip() else line for line in code.splitlines(keepends=True))


def prose(text: str) -> str:
    """A page with spaces in place of its code, at the same positions."""
    for code in (_FENCE, _CODE):
        text = code.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


def targets(text: str) -> list[str]:
    """What a page's links and images lead to."""
    # The text of a link may be code.
    without_fences = _FENCE.sub("", text)
    return [found[2] for found in LINK.finditer(without_fences)] + _IMAGE.findall(without_fences)


def headings(text: str) -> list[str]:
    """The headings of a page, as Markdown."""
    return [found[2] for found in _HEADING.finditer(_FENCE.sub("", text))]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    plain = LINK.sub(r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def summary(text: str) -> str:
    """The first sentence of a page's first paragraph, without links."""
    for paragraph in re.split(r"\n\s*\n", _FENCE.sub("", text)):
        line = " ".join(paragraph.split())
        if line and not line.startswith(("#", "|", "<!--", "- ", "![", "Generated ")):
            plain = LINK.sub(r"\1", line)
            return re.split(r"(?<=[.!?])\s", plain, maxsplit=1)[0].rstrip(":")
    return ""


def llms_txt() -> str:
    """docs/llms.txt: every page with its title and first sentence."""
    parts = [_LLMS_HEAD]
    for title, pages in sections():
        parts.append(f"\n## {title}\n\n")
        parts += [_entry(page, (DOCS / page).read_text()) for page in pages]
    return "".join(parts)


def _entry(page: str, text: str) -> str:
    title = headings(text)[0].replace("`", "")
    about = summary(text)
    return f"- [{title}]({page})" + (f": {about}" if about else "") + "\n"
