"""What vLLM's exceptions say to clients: vLLM's own classes, but no engine."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from rayllm.core.errors import RequestError
from rayllm.engine.arguments import NO_HOST
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.application import pass_anthropic_errors, refuse_media
from rayllm.engine.vllm.errors import describe_exceptions
from rayllm.engine.vllm.generation import completion_request


class Options(BaseModel):
    size: int


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Options(size="large")
    return caught.value


@pytest.fixture(autouse=True)
def described() -> None:
    describe_exceptions()


def error_of(error: Exception) -> dict[str, Any]:
    fields: dict[str, Any] = moved_names.load("create_error_response")(error).model_dump()["error"]
    return fields


def test_an_invalid_model_is_told_without_pydantics_frame() -> None:
    error = error_of(invalid())
    said = "size: Input should be a valid integer, unable to parse string as an integer."
    assert (error["message"], error["param"], error["code"]) == (said, "size", 400)


def test_an_exception_of_vllm_is_told_without_its_parameter_after_it() -> None:
    from vllm.exceptions import VLLMValidationError

    error = error_of(VLLMValidationError("Too hot.", parameter="temperature", value=9))
    assert (error["message"], error["param"], error["code"]) == ("Too hot.", "temperature", 400)
    assert error_of(VLLMValidationError("Too hot."))["message"] == "Too hot."


def test_paths_are_left_out_as_before() -> None:
    from vllm.exceptions import VLLMValidationError

    assert "/usr/lib" not in error_of(VLLMValidationError("No /usr/lib/x.", parameter="x"))["message"]


@pytest.mark.parametrize("error", [RuntimeError("a"), KeyError("a"), ValueError("a"), NotImplementedError("a")])
def test_other_exceptions_are_as_before(error: Exception) -> None:
    code = {ValueError: 400, NotImplementedError: 501}.get(type(error), 500)
    assert (error_of(error)["code"], error_of(error)["param"]) == (code, None)


def test_every_module_of_vllm_says_so() -> None:
    makers = {
        module.create_error_response
        for name, module in list(sys.modules.items())
        if name.startswith("vllm.") and "create_error_response" in vars(module)
    }
    assert makers == {moved_names.load("create_error_response")}


@pytest.mark.parametrize("name", ["create_messages", "count_tokens"])
async def test_a_fault_of_an_anthropic_request_is_returned(name: str) -> None:
    async def fail(request: Any, raw_request: Any) -> None:
        raise request

    serving = SimpleNamespace(create_messages=fail, count_tokens=fail, message_stream_converter=None)
    pass_anthropic_errors(SimpleNamespace(state=SimpleNamespace(anthropic_serving_messages=serving)))
    response = await getattr(serving, name)(invalid(), None)
    assert response.error.message.startswith("size: Input should be")
    assert response.error.code == 400
    with pytest.raises(RuntimeError):
        await getattr(serving, name)(RuntimeError("The engine's fault."), None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": "hot"}, "sampling_params: temperature: Input should be a valid number"),
        ({"structured_outputs": {"choice": 7}}, "sampling_params: structured_outputs.choice"),
    ],
)
def test_an_invalid_row_is_told_without_pydantics_frame(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        completion_request({"prompt": [0], **fields})
    assert caught.value.message.startswith(said)
    assert caught.value.param == "sampling_params"
    assert not any(word in caught.value.message for word in ("validation error", "pydantic", "parameter="))


def test_a_null_in_a_row_is_absent() -> None:
    nulls = {"choice": ["a"], "regex": None, "disable_any_whitespace": None}
    request = completion_request({"prompt": [0], "structured_outputs": nulls})
    without = completion_request({"prompt": [0], "structured_outputs": {"choice": ["a"]}})
    assert request.structured_outputs == without.structured_outputs
    assert request.max_tokens is None


@pytest.mark.parametrize(
    ("url", "said"),
    [("file:///etc/passwd", "Send a data URL"), ("http://a.example/x.png", "allowed_media_domains")],
)
async def test_media_that_are_not_allowed_are_a_fault_of_the_request(url: str, said: str) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import MediaConnector

    refuse_media()
    connector = MediaConnector(allowed_media_domains=[NO_HOST])
    for fetch in (connector.load_from_url, connector.load_from_url_async):
        with pytest.raises(VLLMValidationError, match=said) as caught:
            await fetch(url, None)
        assert caught.value.parameter == "media"


async def test_media_that_are_allowed_are_fetched_as_before(tmp_path: Any) -> None:
    from vllm.multimodal.media import MediaConnector

    refuse_media()
    (tmp_path / "a").write_text("x")
    found = SimpleNamespace(load_file=lambda path: path.read_text(), get_max_bytes=lambda: 9)
    connector = MediaConnector(allowed_local_media_path=str(tmp_path), allowed_media_domains=["b.example"])
    assert await connector.load_from_url_async((tmp_path / "a").as_uri(), found) == "x"
    with pytest.raises(ValueError, match="must be a subpath"):
        await connector.load_from_url_async("file:///etc/passwd", found)
    with pytest.raises(ValueError, match="one of the allowed domains"):
        await connector.load_from_url_async("http://a.example/x", found)
