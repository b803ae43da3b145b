"""Chat templates, which a configuration gives as text or as a path."""

from __future__ import annotations

from pathlib import Path

from rayllm.errors import ConfigError


def read_template(template: str | None) -> str | None:
    """The text of a chat template; None stays None. A template holds braces or line breaks, a path does not.

    Raises:
        ConfigError: the file cannot be read.
    """
    if template is None or "{" in template or "\n" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template: {template} cannot be read: {error.strerror}.") from None
