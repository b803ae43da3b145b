"""Base class of the configuration schemas, and validators of texts."""

import re

from pydantic import AfterValidator, BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable schema that refuses unknown keys. Subclasses do no I/O and take no defaults from the machine."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), hide_input_in_errors=True
    )


def matching(pattern: str, rule: str) -> AfterValidator:
    """A validator that refuses a text that does not match the whole pattern, or has control characters.

    `rule` is the end of the message.
    """

    def check(value: str) -> str:
        if re.search(r"[\x00-\x1f\x7f-\x9f]", value):
            raise ValueError(f"{value!r} must have no line breaks or other control characters")
        if not re.fullmatch(pattern, value):
            raise ValueError(f"`{value}` {rule}")
        return value

    return AfterValidator(check)
