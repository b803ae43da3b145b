"""`prompt_format`: how chat messages become the text that a model was trained on."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from rayllm.prompt.pieces import Placeholder, parse

TOOL_KEYS = ("tools_list", "tool_calls", "tool")
"""Required together, or not at all."""

_PLACEHOLDER = {
    **dict.fromkeys(("system", "assistant", "user", "tool"), "instruction"),
    "tools_list": "tools",
    "tool_calls": "tool_call",
}
_ONLY_IN_USER = {
    # Placeholder of `user`: the key that, when set, makes it required, and how to set it.
    "system": ("system_in_user", "`system_in_user: true`"),
    "tools_list": ("tools_list", "the key `tools_list`"),
}
_NEEDS = {
    # Key: the key that it needs, and how to mend its absence.
    "system_in_last_user": ("system_in_user", "`system_in_user: true`; set it"),
    "tools_in_first_user": ("tools_list", "`tools_list`; add it"),
}
_PLACE = {
    "instruction": "where the message's content belongs",
    "system": "where the system message belongs, since `system_in_user` is true",
    "tools_list": "where the offered tools belong, since the key `tools_list` is set",
    "tools": "where the JSON array of the offered tools belongs",
    "tool_call": "where the JSON object of a call belongs",
}


class PromptFormat(BaseModel):
    """Text templates by role, and how to join the texts.

    A template is literal text with placeholders; `{{` and `}}` are literal braces. A placeholder may occur more than
    once. `bos`, `trailing_assistant` and `default_system_message` are literal text throughout.

    Raises:
        pydantic.ValidationError: lists every error of the format, each at its key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    # Pydantic validates the keys in this order: `user` comes after those that decide about its placeholders.
    bos: str = ""
    """Text that begins every prompt; empty: the tokenizer's own beginning-of-sequence token."""
    system: str
    """Template of the system message, with `{instruction}`."""
    assistant: str
    """Template of an assistant message, with `{instruction}`."""
    trailing_assistant: str = ""
    """Text that ends the prompt and opens the answer."""
    default_system_message: str = ""
    """Content of the system message where a request has none."""
    system_in_user: bool = False
    """Put the rendered system message where `user` has `{system}`, in the first user message."""
    system_in_last_user: bool = False
    """With `system_in_user`: put it into the last user message."""
    add_system_tags_even_if_message_is_empty: bool = False
    """Render the system template even around nothing."""
    later_system: Literal["in_place", "user", "refuse"] | None = None
    """Where a system message goes that comes after others: in its place by the template `system` or as a `user`
    message, or nowhere, and the request is refused. Null is `in_place`, or `refuse` with `system_in_user`."""
    strip_whitespace: bool = True
    """Strip white space from both ends of every message's content."""
    tools_list: str | None = None
    """Template of the offered tools, with `{tools}` for their JSON array; put where `user` has `{tools_list}`, in the
    last user message."""
    tools_in_first_user: bool = False
    """Put the offered tools into the first user message instead, where the next turn finds them cached."""
    tool_calls: str | None = None
    """Template of one call in an assistant message, with `{tool_call}` for its JSON object."""
    tool: str | None = None
    """Template of a tool's result, with `{instruction}`."""
    user: str
    """Template of a user message, with `{instruction}`; also with `{system}` and `{tools_list}`, where these are on."""

    @property
    def places_later_system(self) -> str:
        """`later_system`, or its default."""
        return self.later_system or ("refuse" if self.system_in_user else "in_place")

    @property
    def renders_tools(self) -> bool:
        """Whether tools, tool calls and their results have templates."""
        return self.tool is not None

    @field_validator(*_PLACEHOLDER)
    @classmethod
    def _check_template(cls, template: str | None, info: ValidationInfo) -> str | None:
        if template is not None and (faults := list(_template_faults(str(info.field_name), template, info.data))):
            raise _fault("; ".join(faults))
        return template

    @field_validator(*_NEEDS)
    @classmethod
    def _check_needs(cls, value: bool, info: ValidationInfo) -> bool:
        needed, remedy = _NEEDS[name := str(info.field_name)]
        if value and not info.data.get(needed, True):
            raise _fault(f"`{name}` needs {remedy}, or drop `{name}`")
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _collect_errors(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        # An "after" validator would not run while any single key is invalid.
        missing = list(_missing_tool_keys(data))
        try:
            prompt_format = handler(data)
        except ValidationError as error:
            raise ValidationError.from_exception_data(error.title, [*_details(error), *missing]) from None
        if missing:
            raise ValidationError.from_exception_data(cls.__name__, missing)
        return prompt_format


def _template_faults(key: str, template: str, valid_keys: Mapping[str, Any]) -> Iterator[str]:
    """Errors in one template; `valid_keys` are the keys validated so far."""
    required, known, hints = {_PLACEHOLDER[key]}, {_PLACEHOLDER[key]}, {}
    for name, (switch, setting) in _ONLY_IN_USER.items() if key == "user" else ():
        if valid_keys.get(switch):
            required.add(name)
        elif switch in valid_keys:
            hints[name] = f"needs {setting}"
        # An invalid switch decides nothing: its intended value is unknown.
        known |= {name} - hints.keys()
    parsed = parse(template, known, hints)
    yield from (f"in `{key}`, {fault}" for fault in parsed.faults)
    placeholders = {piece.name for piece in parsed.pieces if isinstance(piece, Placeholder)}
    for name in sorted(required - placeholders):
        yield f"`{key}` must contain `{{{name}}}`; put it {_PLACE[name]}"


def _missing_tool_keys(data: Any) -> Iterator[InitErrorDetails]:
    present = [key for key in TOOL_KEYS if isinstance(data, Mapping) and data.get(key) is not None]
    for key in TOOL_KEYS if present else ():
        if key not in present:
            others = " and ".join(f"`{other}`" for other in present)
            verb = "is" if len(present) == 1 else "are"
            message = f"`{key}` is missing; {others} {verb} given, and the three belong "
            yield InitErrorDetails(type=_fault(f"{message}together: add it, or drop {others}"), loc=(key,), input=None)


def _details(error: ValidationError) -> Iterator[InitErrorDetails]:
    for item in error.errors(include_url=False):
        kind = PydanticCustomError(item["type"], "{fault}", {"fault": item["msg"]})
        yield InitErrorDetails(type=kind, loc=item["loc"], input=item["input"])


def _fault(message: str) -> PydanticCustomError:
    # Passed as a value, since pydantic would interpret braces in the message.
    return PydanticCustomError("prompt_format", "{fault}", {"fault": message})
