"""Maps vLLM's exceptions to RayLLM's and to OpenAI's error objects."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from rayllm.core.errors import EngineError, RequestError
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.request_validation import describe_validation_error


def describe_exceptions(say: Callable[[BaseException], str | None] = lambda error: None) -> None:
    """Have all error objects of vLLM describe exceptions as `say` does or, where that says nothing, `message_of`."""
    original = moved_names.load("create_error_response")

    @wraps(original)
    def create(message: str | Exception, *args: Any, **fields: Any) -> Any:
        response = original(message, *args, **fields)
        if isinstance(message, Exception) and response.error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
            text, param = message_of(message)
            text = say(message) or text
            response.error.message = original(text).error.message
            response.error.param = response.error.param or param
        return response

    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and vars(module).get("create_error_response") is original:
            module.create_error_response = create  # type: ignore[attr-defined]


def message_of(error: BaseException) -> tuple[str, str | None]:
    """The message of an exception for clients, and the field at fault, if known."""
    if isinstance(error, ValidationError):
        return describe_validation_error(error)
    param = getattr(error, "parameter", None)
    # The texts of vLLM's own exceptions end with the parameter and its value.
    return (str(error.args[0]) if hasattr(error, "parameter") and error.args else str(error)), param


def error_object(error: BaseException) -> dict[str, Any] | None:
    """vLLM's error object for an exception caused by the request, else None.

    Looks at the causes of Starlette's error about a reply that has already started.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, client_errors()) or _is_http_error(cause):
            return dict(moved_names.load("create_error_response")(cause).model_dump()["error"])
        cause = cause.__cause__
    return None


@contextmanager
def request_errors() -> Iterator[None]:
    """Map vLLM's exceptions in the block to RayLLM's."""
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        yield
    except EngineDeadError:
        raise EngineError("The engine died.") from None
    except (EngineGenerateError, moved_names.load("GenerationError")) as error:
        raise RequestError(f"The engine failed on this request: {one_line(error.__cause__ or error)}") from None
    except Exception as error:
        if isinstance(error, (*client_errors(), ValueError, TypeError, NotImplementedError)):
            message, param = message_of(error)
            raise RequestError(_shortened(message), param) from None
        raise


def client_errors() -> tuple[type[Exception], ...]:
    """vLLM's exceptions that a request causes."""
    if moved_names.has("VLLMClientError"):
        return (moved_names.load("VLLMClientError"),)
    from vllm.exceptions import VLLMNotFoundError, VLLMUnprocessableEntityError, VLLMValidationError

    return VLLMValidationError, VLLMNotFoundError, VLLMUnprocessableEntityError


def http_error(message: str, status: int) -> Exception:
    """An exception that vLLM's serving classes answer with a status above 499."""
    if moved_names.has("GracefulHTTPError"):
        return moved_names.load("GracefulHTTPError")(message, HTTPStatus(status))  # type: ignore[no-any-return]
    error: Exception = moved_names.load("GenerationError")(message)
    error.status_code = HTTPStatus(status)  # type: ignore[attr-defined]
    return error


def _is_http_error(error: BaseException) -> bool:
    if moved_names.has("GracefulHTTPError"):
        return isinstance(error, moved_names.load("GracefulHTTPError"))
    status = getattr(error, "status_code", HTTPStatus.INTERNAL_SERVER_ERROR)
    return isinstance(error, moved_names.load("GenerationError")) and status != HTTPStatus.INTERNAL_SERVER_ERROR


def one_line(error: BaseException) -> str:
    """The text of an exception on one line, at most 2,000 characters."""
    return _shortened(str(error))


def _shortened(text: str) -> str:
    return " ".join(text.split())[:2000]
