"""Options of processors, and those that they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.batch import Checkpoint, HTTPRequestProcessorConfig, RequestProcessorConfig, VLLMProcessorConfig
from rayllm.batch.config import pool_size
from rayllm.core.errors import ConfigError

URL = "http://127.0.0.1/v1"


def http(**keys: Any) -> HTTPRequestProcessorConfig:
    return HTTPRequestProcessorConfig(**{"url": URL, **keys})


def vllm(**keys: Any) -> VLLMProcessorConfig:
    return VLLMProcessorConfig(**{"model": "m", **keys})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"concurency": 2}, "concurency: unknown key; did you mean `concurrency`?"),
        ({"batch_size": 0}, "batch_size: input should be greater than or equal to 1"),
        ({"on_error": "ignore"}, "on_error: input should be 'column' or 'raise'"),
        ({"task_type": "chat"}, "task_type: input should be 'generate', "),
        ({"max_pending_requests": 0}, "max_pending_requests: input should be greater than or equal to 1"),
        ({"max_engine_restarts": -1}, "max_engine_restarts: input should be greater than or equal to 0"),
        ({"engine_kwargs": ["seed"]}, "engine_kwargs: input should be a valid dictionary"),
        ({"runtime_env": "x"}, "runtime_env: input should be a valid dictionary"),
        ({"checkpoint": {"path": "/x"}}, "checkpoint: .*id_column: is required"),
        ({"checkpoint": {"path": "/x", "id_colum": "id"}}, "id_colum: unknown key; did you mean `id_column`?"),
        ({"model": 7}, "model"),
    ],
)
def test_what_an_engine_refuses(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)VLLMProcessorConfig: .*{message}"):
        vllm(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"url": "ftp://x"}, "url: `ftp://x` must be a URL that begins with http:// or https://"),
        ({"url": "http://"}, "url: "),
        ({"qps": 0}, "qps: input should be greater than 0"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests: input should be greater than or equal to 1"),
        ({"max_retries": -1}, "max_retries: "),
        ({"base_retry_wait_time_in_s": 0}, "base_retry_wait_time_in_s: "),
        ({"timeout_s": 0}, "timeout_s: "),
        ({"header": "Authorization Bearer x"}, "header: must be `Name: value`, one a line"),
        ({"header": "A: 1\nno header"}, "header: must be `Name: value`, one a line"),
        ({"header": {"A": 1}}, "header"),
        ({"accelerator_type": "L4"}, "`accelerator_type` is for engines"),
        ({"headers": {"A": "1"}}, "headers: unknown key; did you mean `header`?"),
    ],
)
def test_what_requests_refuse(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"HTTPRequestProcessorConfig: .*{message}"):
        http(**keys)


@pytest.mark.parametrize("value", [0, -1, (0, 2), (3, 2), (1, 2, 3), (1,), "many", 1.5, None])
def test_a_wrong_number_of_workers(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"concurrency: .* must be a number of at least 1, or \(minimum, maximum\)"):
        vllm(concurrency=value)


@pytest.mark.parametrize(("value", "workers"), [(3, (3, 3)), ((1, 4), (1, 4)), ([2, 2], (2, 2)), ("2", (2, 2))])
def test_numbers_of_workers(value: Any, workers: tuple[int, int]) -> None:
    assert pool_size(vllm(concurrency=value).concurrency) == workers


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        vllm(batch_size=0, concurrency=0, modell="x")
    assert len(str(caught.value).splitlines()) == 3


def test_a_checkpoint_refuses_the_same_by_itself() -> None:
    with pytest.raises(ConfigError, match="Checkpoint: id_column: is required"):
        Checkpoint(path="/x")  # type: ignore[call-arg]
    assert vllm(checkpoint={"path": "/x", "id_column": "id"}).checkpoint == Checkpoint(path="/x", id_column="id")


@pytest.mark.parametrize("keys", [{}, {"model": "m", "app_name": "app"}])
def test_requests_are_answered_by_a_model_or_by_an_application(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give either `model` or `app_name`"):
        RequestProcessorConfig(**keys)


@pytest.mark.parametrize(
    "keys", [{"accelerator_type": "L4"}, {"runtime_env": {"env_vars": {}}}, {"max_engine_restarts": 1}]
)
def test_what_is_an_engines_has_no_meaning_for_an_application(keys: dict[str, Any]) -> None:
    assert RequestProcessorConfig(model="m", **keys)
    with pytest.raises(ConfigError, match=f"`{next(iter(keys))}` is for an engine in each worker"):
        RequestProcessorConfig(app_name="app", **keys)


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        (None, {}),
        ("", {}),
        ("Authorization: Bearer abc", {"Authorization": "Bearer abc"}),
        ("A: 1\n\n  \nB-c :  2:3 \r\n", {"A": "1", "B-c": "2:3"}),
        ("A:", {"A": ""}),
        ({"A": "1"}, {"A": "1"}),
        ("A: $BATCH_KEY", {"A": "secret"}),
        ("A: Bearer ${BATCH_KEY}!", {"A": "Bearer secret!"}),
        ("A: ${env:BATCH_KEY}/${BATCH_KEY}", {"A": "secret/secret"}),
        ({"A": "$BATCH_KEY"}, {"A": "secret"}),
        ("A: $1 and $", {"A": "$1 and $"}),
        ("content-type: text/plain\nA: 1", {"A": "1"}),
        ({"CONTENT-TYPE": "text/plain"}, {}),
    ],
)
def test_headers(monkeypatch: pytest.MonkeyPatch, header: Any, sent: dict[str, str]) -> None:
    monkeypatch.setenv("BATCH_KEY", "secret")
    assert http(header=header).headers() == {"x-rayllm-priority": "batch", **sent, "Content-Type": "application/json"}


@pytest.mark.parametrize("text", ["$BATCH_KEY", "${BATCH_KEY}", "${env:BATCH_KEY}"])
def test_a_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("BATCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="header: the environment variable `BATCH_KEY` is not set; export it"):
        http(header=f"A: {text}").headers()


def test_secrets_are_not_in_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_KEY", "secret")
    assert "secret" not in repr(http(header="A: $BATCH_KEY"))
