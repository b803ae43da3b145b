"""vLLM's exceptions, mapped to ours and to OpenAI's error objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rayllm.errors import EngineError, RequestError


def error_object(error: BaseException) -> dict[str, Any] | None:
    """vLLM's error object for an exception caused by the request, else None.

    Looks at the causes of Starlette's error about a reply that has already started.
    """
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import GracefulHTTPError, VLLMClientError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, VLLMClientError | GracefulHTTPError):
            return dict(create_error_response(cause).model_dump()["error"])
        cause = cause.__cause__
    return None


@contextmanager
def request_errors() -> Iterator[None]:
    """Map what vLLM raises for one request to our exceptions."""
    from vllm.exceptions import GenerationError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        yield
    except EngineDeadError:
        raise EngineError("The engine died.") from None
    except (EngineGenerateError, GenerationError) as error:
        raise RequestError(f"The engine failed on this request: {one_line(error.__cause__ or error)}") from None
    except (VLLMClientError, ValueError, TypeError, NotImplementedError) as error:
        raise RequestError(one_line(error)) from None


def one_line(error: BaseException) -> str:
    """The error's text on one line, at most 2,000 characters."""
    return " ".join(str(error).split())[:2000]
