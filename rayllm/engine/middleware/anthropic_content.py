"""Rewrites content of Anthropic's API that vLLM would silently leave out of the prompt.

Texts of documents and of search results become text blocks; blocks without a text are refused.
"""

from collections.abc import Iterator
from typing import Any

from rayllm.core.errors import RequestError

Body = dict[str, Any]

# Block → the role of its messages. In messages of other roles, vLLM silently leaves the block out.
_ROLES = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
    "document": "user",
    "search_result": "user",
}
# vLLM's blocks that change a conversation's tools.
_TOOL_CHANGES = ("tool_addition", "tool_removal")
# Type of an image's source → the field with the image.
_IMAGES = {"base64": "data", "url": "url"}
_IN_RESULTS = ("text", "image", "document", "search_result", "tool_reference")


def with_texts_of_documents(body: Body) -> Body:
    """`body` with documents and search results as text blocks.

    Blocks and messages of a wrong type are left for vLLM to refuse.

    Raises:
        RequestError: a block has no text for the prompt; the message names the block.
    """
    changed = dict(body)
    if isinstance(system := body.get("system"), list):
        _check_texts("system", system)
    if isinstance(messages := body.get("messages"), list):
        changed["messages"] = [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]
    return changed


def _message(name: str, message: Body) -> Body:
    content, role = message.get("content"), message.get("role")
    if not isinstance(content, list):
        return message
    if role == "system":
        _check_texts(f"{name}.content", content, _TOOL_CHANGES)
        return message
    blocks: list[Any] = []
    for index, block in enumerate(content):
        where, kind = f"{name}.content[{index}]", _type_of(block)
        if kind in _ROLES and role != _ROLES[kind]:
            raise _fault(f"`{where}`: `{kind}` blocks belong to messages of the role `{_ROLES[kind]}`.")
        if kind == "tool_reference":
            raise _fault(f"`{where}`: `tool_reference` blocks belong into the content of a `tool_result`.")
        blocks += [_tool_result(where, block)] if kind == "tool_result" else _blocks(where, block)
    return {**message, "content": blocks}


def _check_texts(name: str, blocks: list[Any], others: tuple[str, ...] = ()) -> None:
    """Refuse blocks that vLLM would leave out of system messages: all but texts."""
    for index, block in enumerate(blocks):
        kind = _type_of(block)
        if kind is None or kind in others or (kind == "text" and isinstance(block.get("text"), str)):
            continue
        raise RequestError(f"`{name}[{index}]` must be a block of the type `text`, with a text.", name.split("[")[0])


def _tool_result(name: str, block: Body) -> Body:
    content = block.get("content")
    if not isinstance(content, list):
        return block
    blocks: list[Any] = []
    for index, item in enumerate(content):
        where = f"{name}.content[{index}]"
        if (kind := _type_of(item)) not in _IN_RESULTS:
            said = "is no block with a type" if kind is None else f"is of the type `{kind[:40]}`"
            raise _fault(f"`{where}` {said}; the content of a `tool_result` may have {', '.join(_IN_RESULTS)}.")
        if kind == "tool_reference" and not (item.get("tool_name") or item.get("name")):
            raise _fault(f"`{where}.tool_name` is required.")
        blocks += _blocks(where, item)
    return {**block, "content": blocks}


def _blocks(name: str, block: Any) -> list[Any]:
    kind = _type_of(block)
    if kind == "document":
        return _document(name, block)
    if kind == "search_result":
        return [_titled(block, ("title", "source"), "\n".join(_texts(f"{name}.content", block.get("content"))))]
    if kind in ("text", "thinking"):
        _text_of(name, block, kind)
    if kind == "image":
        # To vLLM, a source without a type is Base64, and one without content an empty picture.
        source = block.get("source")
        field = _IMAGES.get(str(source.get("type", "base64"))) if isinstance(source, dict) else None
        if field is None:
            raise _fault(f"`{name}.source` must be of the type `base64` or `url`.")
        _text_of(f"{name}.source", source, field)
    return [block]


def _document(name: str, block: Body) -> list[Any]:
    source, fields = block.get("source") or {}, ("title", "context")
    if (kind := _type_of(source)) == "text":
        return [_titled(block, fields, _text_of(f"{name}.source", source, "data"))]
    content = source.get("content") if kind == "content" else None
    if isinstance(content, str):
        return [_titled(block, fields, content)]
    if isinstance(content, list):
        heading = _titled(block, fields, "")
        parts = [heading] if heading["text"] else []
        for index, part in enumerate(content):
            if _type_of(part) not in ("text", "image"):
                raise _fault(f"`{name}.source.content[{index}]` must be a block of the type `text` or `image`.")
            parts += _blocks(f"{name}.source.content[{index}]", part)
        return parts
    raise _fault(
        f"`{name}` is a document whose source is of the type `{str(kind)[:40]}`, which this service does not read. "
        "Send a PDF in Base64, or a text: `source: {type: text, media_type: text/plain, data: …}`."
    )


def _titled(block: Body, names: tuple[str, ...], text: str) -> Body:
    """A text block that begins with those fields of `block` that are texts."""
    lines = [f"{name.capitalize()}: {value}" for name in names if isinstance(value := block.get(name), str) and value]
    return {"type": "text", "text": "\n\n".join(filter(None, ("\n".join(lines), text)))}


def _texts(name: str, blocks: Any) -> Iterator[str]:
    if not isinstance(blocks, list):
        raise _fault(f"`{name}` must be a list of text blocks.")
    for index, block in enumerate(blocks):
        if _type_of(block) != "text":
            raise _fault(f"`{name}[{index}]` must be a block of the type `text`.")
        yield _text_of(f"{name}[{index}]", block, "text")


def _text_of(name: str, block: Body, field: str) -> str:
    text = block.get(field)
    if not isinstance(text, str):
        raise _fault(f"`{name}.{field}` must be a text.")
    return text


def _type_of(block: Any) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else None


def _fault(message: str) -> RequestError:
    return RequestError(message, "messages")
