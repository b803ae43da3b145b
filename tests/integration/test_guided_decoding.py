"""Custom guided decoding backends in a real engine: by request, side by side, streamed, and failing alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ray import serve

from rayllm import build_app
from tests.integration.service import DEMO, Service
from tests.integration.test_openai_api import CHAT, COMPLETIONS, PLAIN, USER, events, failure

PROMPT = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"


def asked(backend: str | None, **nvext: Any) -> dict[str, Any]:
    extension = {"guided_decoding_backend": backend, **nvext}
    return {"model": "extras", "temperature": 0, "max_tokens": 32, "nvext": {k: v for k, v in extension.items() if v}}


def chat(http: httpx.Client, stream: bool = False, **body: Any) -> str:
    reply = http.post(CHAT, json={"messages": [USER], **body, "stream": stream})
    assert reply.status_code == 200, reply.text
    if stream:
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in events(reply))
    return str(reply.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
def test_the_pages_own_example_runs_unchanged(kinds: httpx.Client, stream: bool) -> None:
    assert chat(kinds, stream, **asked("page-example")) == "Custom decoding test"


def test_the_example_as_the_page_asks_for_it(kinds: httpx.Client) -> None:
    body = {
        "model": "extras",
        "prompt": "My prompt",
        "top_p": 1,
        "n": 1,
        "frequency_penalty": 1.0,
        "stream": False,
        "max_tokens": 15,
        "nvext": {"guided_decoding_backend": "page-example"},
    }
    assert kinds.post(COMPLETIONS, json=body).json()["choices"][0]["text"] == "Custom decoding test"


def test_each_choice_has_a_state_of_its_own(kinds: httpx.Client) -> None:
    reply = kinds.post(CHAT, json={"messages": [USER], **asked("page-example"), "n": 3, "temperature": 1}).json()
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["Custom decoding test"] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_backend_keeps_state_in_context_variables(kinds: httpx.Client, stream: bool) -> None:
    assert chat(kinds, stream, **asked("say", say="Good evening.")) == "Good evening."


def test_a_letter_is_forbidden(kinds: httpx.Client) -> None:
    body = {"prompt": PROMPT, **asked("without-e"), "max_tokens": 64}
    text = kinds.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
    assert text.strip()
    assert "e" not in text.lower()
    free = kinds.post(COMPLETIONS, json={"prompt": PROMPT, **asked(None), "max_tokens": 64}).json()
    assert "e" in free["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_response_is_processed_with_the_wheel_of_the_backend(kinds: httpx.Client, stream: bool) -> None:
    said = chat(kinds, stream, **asked("signed"), user="ada")
    assert said == "THE CAPITAL OF FRANCE IS PARIS. -- ada"


def test_different_backends_in_one_batch_do_not_mix(kinds: httpx.Client) -> None:
    wanted: dict[str, dict[str, Any]] = {
        "Custom decoding test": asked("page-example"),
        "Good morning.": asked("say", say="Good morning."),
        "Good night.": asked("say", say="Good night."),
        "THE CAPITAL OF FRANCE IS PARIS. -- bob": {**asked("signed"), "user": "bob"},
        "The capital of France is Paris.": asked(None),
    }
    bodies = list(wanted.values()) * 4
    with ThreadPoolExecutor(len(bodies)) as threads:
        said = threads.map(lambda pair: chat(kinds, pair[0] % 2 == 0, **pair[1]), enumerate(bodies))
        assert list(said) == list(wanted) * 4


@pytest.mark.parametrize("where", ["preparing", "making", "running"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_backend_that_raises_fails_its_own_request_alone(kinds: httpx.Client, where: str, stream: bool) -> None:
    broken = {"messages": [USER], **asked("failing", where=where), "stream": stream, "min_tokens": 8}
    with ThreadPoolExecutor(4) as threads:
        others = [threads.submit(chat, kinds, **asked("say", say="I go on.")) for _ in range(3)]
        reply = kinds.post(CHAT, json=broken)
        assert [other.result() for other in others] == ["I go on."] * 3
    if reply.status_code == 200:
        assert stream
        assert where == "running"
        said = reply.text
    else:
        status, error = failure(reply)
        assert (status, error["type"]) == (500, "server_error")
        said = error["message"]
    assert "guided decoding backend `failing` failed while" in said
    assert "secret" not in reply.text
    assert chat(kinds, **asked(None)) == "The capital of France is Paris."


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_hook_that_raises_is_told_too(kinds: httpx.Client, stream: bool) -> None:
    body = {"messages": [USER], **asked("failing", where="nowhere"), "stream": stream}
    assert kinds.post(CHAT, json=body).status_code == 200
    status, error = failure(kinds.post(CHAT, json=body, headers={"x-session-id": "fail"}))
    assert (status, "failed while it looked at the response" in error["message"]) == (500, True)


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        (CHAT, {"messages": [USER], **asked("nobody")}, "nvext.guided_decoding_backend", "`failing`, `page-example`"),
        (CHAT, {"messages": [USER], "model": "extras", "nvext": 7}, "nvext", "object"),
        (CHAT, {"messages": [USER], **asked("../say")}, "nvext.guided_decoding_backend", "There is no guided"),
        (CHAT, {"messages": [USER], **asked("say", say="x"), "use_beam_search": True}, "use_beam_search", "beam"),
        (CHAT, {"messages": [USER], **asked("say", say="x"), "guided_choice": ["a"]}, "structured_outputs", "exclude"),
        ("/v1/responses", {"input": "x", **asked("say")}, "nvext.guided_decoding_backend", "work with"),
        ("/v1/messages", {"messages": [USER], **asked("say")}, "nvext.guided_decoding_backend", "work with"),
    ],
)
def test_wrong_choices(kinds: httpx.Client, path: str, body: dict[str, Any], param: str, said: str) -> None:
    status, error = failure(kinds.post(path, json=body))
    assert (status, error["param"]) == (400, param), error
    assert said in error["message"]


def test_a_model_without_backends_says_so(http: httpx.Client) -> None:
    body = {"messages": [USER], **asked("say"), "model": "rayllm-demo"}
    status, error = failure(http.post(CHAT, json=body))
    assert (status, error["param"]) == (400, "nvext.guided_decoding_backend")


@pytest.mark.parametrize("stream", [False, True])
def test_the_default_backend_from_nims_variables(kinds: httpx.Client, stream: bool) -> None:
    assert chat(kinds, stream, **asked(None), user="say:By default.") == "By default."
    assert chat(kinds, stream, **asked("say", say="Named."), user="say:By default.") == "Named."
    # A constraint of the request's own goes before a default.
    assert chat(kinds, stream, **asked(None), user="say:By default.", guided_choice=["chosen"]) == "chosen"


@pytest.mark.parametrize("adapter", ["", ":pirate"])
def test_backends_of_the_models_file_beside_adapters(http: httpx.Client, adapter: str) -> None:
    body = {"model": PLAIN + adapter, "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
    assert http.post(COMPLETIONS, json={**body, "user": "say:Ahoy."}).json()["choices"][0]["text"] == "Ahoy."
    free = [
        http.post(COMPLETIONS, json={**body, "model": PLAIN + a}).json()["choices"][0]["text"] for a in ("", adapter)
    ]
    assert (free[0] != free[1]) == bool(adapter)


def test_a_broken_backend_is_told_where_serve_shows_it(service: Service, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "backend.py").write_text("import nobody_has_this\n")
    model = yaml.safe_load(DEMO.read_text())
    model["model_loading_config"] = {"model_id": "broken", "model_source": str(DEMO.parent / "rayllm-demo" / "weights")}
    model.pop("lora_config", None)
    model |= {
        "guided_decoding": {"backends_dir": str(tmp_path), "trust_custom_code": True},
        "deployment_config": {"max_constructor_retry_count": 1},
    }
    try:
        with pytest.raises(RuntimeError):
            serve.run(build_app({"llm_configs": [model]}), name="broken", route_prefix="/broken")
        deployments = serve.status().applications["broken"].deployments
        [message] = [found.message for found in deployments.values() if "nobody_has_this" in found.message]
        assert "broken" in message
    finally:
        serve.delete("broken")


def test_a_forged_envelope_does_nothing(kinds: httpx.Client) -> None:
    forged = {"rayllm_guided": '{"backend": "say", "type": "chat", "request": {}, "ticket": "x"}'}
    body = {"messages": [USER], **asked(None), "vllm_xargs": forged}
    assert chat(kinds, **body) == "The capital of France is Paris."
