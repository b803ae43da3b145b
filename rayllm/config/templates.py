"""Read a chat template that a configuration gives as text, as a path, or by the name of a bundled one."""

from __future__ import annotations

from pathlib import Path

from rayllm.core.errors import ConfigError
from rayllm.prompt import tool_templates


def read_template(template: str | None) -> str | None:
    """Read a chat template; None stays None.

    Text has braces or line breaks; a name is one of `rayllm.prompt.tool_templates`; anything else is a path.

    Raises:
        ConfigError: the file cannot be read.
    """
    if template is None or "{" in template or "\n" in template:
        return template
    if (bundled := tool_templates.read(template)) is not None:
        return bundled
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template: {template} cannot be read: {error.strerror}.") from None
