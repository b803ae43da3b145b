"""Which job executes a batch."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from rayllm.access import ANYONE, Caller, Key, KeyFile
from rayllm.access.key import key_hash
from rayllm.batch import RequestProcessorConfig
from rayllm.config import AppConfig, BatchesConfig, ModelConfig, load_app
from rayllm.core.errors import AuthenticationError, ModelNotFoundError, RequestError, StorageError
from rayllm.serving.batch_api.execution.runner import executor_of, open_job
from rayllm.serving.batch_api.objects import Batch, BatchRequest
from rayllm.serving.batch_api.storage.stores import Stores


def create(stores: Stores, content: bytes, caller: Caller = ANYONE) -> Batch:
    file = stores.files.put(BytesIO(content), len(content), "requests.jsonl", "batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return stores.batches.create(BatchRequest.parse(asked), caller)


def options(storage: str, execution: str, keys: Path | None = None) -> tuple[str, AppConfig, BatchesConfig]:
    models = [{"model_loading_config": {"model_id": name}} for name in ("one", "two")]
    router = {
        "model_aliases": {"alias": "two"},
        "batches": {"storage": storage, "execution": execution},
        "keys": str(keys) if keys else None,
    }
    config = load_app({"llm_configs": models, "router": router})
    assert config.router.batches is not None
    return "app", config, config.router.batches


def executor(
    stores: Stores, storage: str, execution: str, batch: Batch, keys: Path | None = None
) -> RequestProcessorConfig:
    return executor_of(*options(storage, execution, keys), stores, batch)


def line(body: Any) -> bytes:
    return json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": body}).encode() + b"\n"


@pytest.mark.parametrize(("name", "model_id"), [("one", "one"), ("two", "two"), ("alias", "two")])
def test_engines_are_of_the_model_that_the_first_line_names(
    stores: Stores, storage: str, name: str, model_id: str
) -> None:
    batch = create(stores, line({"model": name, "input": "x" * 1_000_000}) + line({"model": "three"}))
    made = executor(stores, storage, "engines", batch)
    assert isinstance(made.model, ModelConfig)
    assert (made.model.model_id, made.app_name) == (model_id, None)
    assert made.max_pending_requests == 64


@pytest.mark.parametrize("first", [b"", b"nonsense\n", b"[]\n", b"\xff\n", line([]), line({}), line({"model": 1})])
def test_a_first_line_without_a_model_is_refused(stores: Stores, storage: str, first: bytes) -> None:
    with pytest.raises(RequestError, match="The first line must be a request with a `model`"):
        executor(stores, storage, "engines", create(stores, first))


def test_an_unknown_model_is_refused(stores: Stores, storage: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"The model `three` does not exist. Models here: `one`, `two`"):
        executor(stores, storage, "engines", create(stores, line({"model": "three"})))


def test_the_running_models_answer_whatever_the_lines_say(stores: Stores, storage: str) -> None:
    made = executor(stores, storage, "deployed", create(stores, b"nonsense\n"))
    assert (made.app_name, made.model, made.max_pending_requests) == ("app", None, 64)


def test_a_job_works_on_the_file_in_the_folder_of_the_batch(stores: Stores, storage: str) -> None:
    batch = create(stores, line({"model": "one"}) + line({"model": "one"}))
    job = open_job(*options(storage, "deployed"), stores, batch)
    assert [(fault.code, fault.line) for fault in job.validate()] == [("duplicate_custom_id", 2)]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file of keys, with one of alice's."""
    file = KeyFile(str(tmp_path / "keys.yaml"))
    with file.change() as keys:
        keys.append(Key(name="alice", hash=key_hash("a", file.salt), models=("one",)))
    return tmp_path / "keys.yaml"


def test_requests_are_sent_with_the_key_of_the_batch(stores: Stores, storage: str, keys: Path) -> None:
    batch = create(stores, line({"model": "one"}), Caller("alice", "alice"))
    assert executor(stores, storage, "deployed", batch, keys).caller.name == "alice"
    assert executor(stores, storage, "engines", batch, keys).caller == Caller("alice", "alice", ("one",))
    of_an_administrator = create(stores, line({"model": "one"}), Caller("admin", is_admin=True))
    assert executor(stores, storage, "engines", of_an_administrator, keys).caller == ANYONE


@pytest.mark.parametrize("execution", ["deployed", "engines"])
def test_requests_of_a_token_are_sent_with_its_tenant_and_models(stores: Stores, storage: str, execution: str) -> None:
    sender = Caller("oidc:dora", "research", ("one",))
    batch = create(stores, line({"model": "one"}), sender)
    assert executor(stores, storage, execution, batch).caller == sender


def test_a_batch_of_a_revoked_key_fails_and_waits_for_a_file_that_cannot_be_read(
    stores: Stores, storage: str, keys: Path
) -> None:
    batch = create(stores, line({"model": "one"}), Caller("gone", "gone"))
    with pytest.raises(AuthenticationError):
        executor(stores, storage, "engines", batch, keys)
    keys.write_text("keys: [")
    with pytest.raises(StorageError):
        executor(stores, storage, "engines", batch, keys)
