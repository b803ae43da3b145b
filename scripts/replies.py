"""What the endpoints answer with success: the types of their bodies."""

from __future__ import annotations

import functools
import operator
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, create_model

from rayllm.access.usage import COUNTS, GROUPS
from rayllm.core.endpoints import (
    CHAT,
    CHAT_BATCH,
    CLASSIFY,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    MODERATIONS,
    RESPONSES,
    TOKENIZE,
)
from rayllm.core.priority import PriorityName
from rayllm.serving.batch_api.objects import Batch, File
from rayllm.serving.router.application import DESCRIPTION as OPENAPI
from rayllm.serving.router.telemetry.recent_requests import RecentRequests
from rayllm.serving.router.ui.pages import PATH as UI
from rayllm.serving.wire.record import RequestRecord

_PAGE = {"first_id": (str | None, ...), "last_id": (str | None, ...), "has_more": (bool, ...)}
BYTES = "application/octet-stream"
_TEXT = "text/plain"


class Reply(NamedTuple):
    """The body of a successful reply.

    `body` is the type of a JSON body, `events` that of the data of a stream's events; `others` are further media types.
    """

    body: Any = None
    events: Any = None
    others: tuple[str, ...] = ()


class KeyDescription(BaseModel):
    """A key as administrators see it; for the meaning of the fields see `rayllm.access.key.Key`."""

    object: Literal["key"] = "key"
    name: str
    tenant: str
    status: Literal["active", "expired"]
    models: tuple[str, ...] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens_per_day: int | None
    max_concurrent: int | None
    priority: PriorityName
    expires: datetime | None
    labels: dict[str, str]
    admin: bool
    scrape: bool


class ModelCard(BaseModel):
    """An entry of `/v1/models`."""

    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    endpoints: list[str] | None
    input_modalities: list[str] | None


class DeletedFile(BaseModel):
    """Confirmation that a file was deleted."""

    id: str
    object: Literal["file"]
    deleted: bool


class ModerationResult(BaseModel):
    """The result for one text."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class Moderation(BaseModel):
    """The results for all texts."""

    id: str
    model: str
    results: list[ModerationResult]


class Health(BaseModel):
    """Liveness of the router's process."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Readiness, and the phase of every model that the caller may know of."""

    status: Literal["ready"]
    models: list[str] = []
    phases: dict[str, str] = {}


class Versions(BaseModel):
    """Versions of the service and its parts."""

    version: str
    ray: str
    vllm: str | None


def replies() -> dict[tuple[str, str], Reply]:
    """The replies by method and path. Imports vLLM."""
    file = _public(File(id="", bytes=0, created_at=0, filename="", purpose=""))
    batch = _public(Batch(id="", endpoint="", input_file_id="", completion_window="", created_at=0, expires_at=0))
    record = _recent_request()
    return {
        **{("post", path): reply for path, reply in _of_models().items()},
        ("get", "/v1/models"): Reply(_list_of(ModelCard)),
        ("get", "/v1/models/{name}"): Reply(ModelCard),
        ("post", MODERATIONS): Reply(Moderation),
        ("post", "/v1/files"): Reply(file),
        ("get", "/v1/files"): Reply(_list_of(file, **_PAGE)),
        ("get", "/v1/files/{id}"): Reply(file),
        ("delete", "/v1/files/{id}"): Reply(DeletedFile),
        ("get", "/v1/files/{id}/content"): Reply(others=(BYTES,)),
        ("post", "/v1/batches"): Reply(batch),
        ("get", "/v1/batches"): Reply(_list_of(batch, **_PAGE)),
        ("get", "/v1/batches/{id}"): Reply(batch),
        ("post", "/v1/batches/{id}/cancel"): Reply(batch),
        ("post", "/v1/load_lora_adapter"): Reply(others=(_TEXT,)),
        ("post", "/v1/unload_lora_adapter"): Reply(others=(_TEXT,)),
        ("get", "/v1/usage"): Reply(_usage()),
        ("get", "/v1/keys"): Reply(_list_of(KeyDescription, **_PAGE)),
        ("get", "/v1/requests"): Reply(_list_of(record)),
        ("get", "/v1/requests/{request_id}"): Reply(record),
        ("get", "/metrics"): Reply(others=(_TEXT, "application/openmetrics-text")),
        ("get", "/"): Reply(Health),
        ("get", "/health"): Reply(Health),
        ("get", "/ready"): Reply(Ready),
        ("get", "/version"): Reply(Versions),
        ("get", OPENAPI): Reply(dict[str, Any]),
        ("get", UI): Reply(others=("text/html",)),
    }


def _of_models() -> dict[str, Reply]:
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.generate.generative_scoring.serving import GenerativeScoringResponse
    from vllm.entrypoints.openai.chat_completion import protocol as chat
    from vllm.entrypoints.openai.completion import protocol as completion
    from vllm.entrypoints.openai.responses import protocol as responses
    from vllm.entrypoints.openai.responses import streaming_events
    from vllm.entrypoints.pooling.classify.protocol import ClassificationResponse
    from vllm.entrypoints.pooling.embed import protocol as embed
    from vllm.entrypoints.pooling.pooling import protocol as pooling
    from vllm.entrypoints.pooling.scoring.protocol import RerankResponse, ScoreResponse
    from vllm.entrypoints.serve.tokenize import protocol as tokenize
    from vllm.entrypoints.speech_to_text.transcription import protocol as transcription
    from vllm.entrypoints.speech_to_text.translation import protocol as translation

    # The union in vLLM's protocol lacks some that it sends, and OpenAI's type of one lacks a field.
    sent = {name: event for name, event in vars(streaming_events).items() if name.endswith("Event")}
    done = "ResponseFunctionCallArgumentsDoneEvent"
    sent[done] = create_model(done, __base__=sent[done], name=(str, ...))
    events = functools.reduce(operator.or_, sent.values(), responses.StreamingResponsesResponse)
    return {
        CHAT: Reply(chat.ChatCompletionResponse, chat.ChatCompletionStreamResponse),
        CHAT_BATCH: Reply(chat.ChatCompletionResponse),
        COMPLETIONS: Reply(completion.CompletionResponse, completion.CompletionStreamResponse),
        RESPONSES: Reply(responses.ResponsesResponse, events),
        MESSAGES: Reply(anthropic.AnthropicMessagesResponse, anthropic.AnthropicStreamEvent),
        COUNT_TOKENS: Reply(anthropic.AnthropicCountTokensResponse),
        "/generative_scoring": Reply(GenerativeScoringResponse),
        EMBEDDINGS: Reply(embed.EmbeddingResponse, others=(BYTES,)),
        "/v2/embed": Reply(embed.CohereEmbedResponse),
        "/pooling": Reply(pooling.PoolingResponse | pooling.IOProcessorResponse, others=(BYTES,)),
        CLASSIFY: Reply(ClassificationResponse),
        **dict.fromkeys(("/score", "/v1/score"), Reply(ScoreResponse)),
        **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), Reply(RerankResponse)),
        "/v1/audio/transcriptions": Reply(
            transcription.TranscriptionResponseVariant, transcription.TranscriptionStreamResponse
        ),
        "/v1/audio/translations": Reply(translation.TranslationResponseVariant, translation.TranslationStreamResponse),
        TOKENIZE: Reply(tokenize.TokenizeResponse),
        DETOKENIZE: Reply(tokenize.DetokenizeResponse),
    }


def _public(example: File | Batch) -> type[BaseModel]:
    """An object as clients see it, always with all of its fields."""
    kept = example.public().keys()
    fields: dict[str, Any] = {
        name: (field.annotation, ...) for name, field in type(example).model_fields.items() if name in kept
    }
    return create_model(f"{type(example).__name__}Object", **fields)


def _usage() -> type[BaseModel]:
    fields: dict[str, Any] = dict.fromkeys(COUNTS, (int, ...)) | dict.fromkeys(GROUPS, (str, ""))
    return _list_of(create_model("Usage", **fields), since=(str, ...), until=(str, ...))


def _list_of(entry: type[BaseModel], **more: Any) -> type[BaseModel]:
    """A list object, and what it has besides its entries."""
    fields: dict[str, Any] = {"object": (Literal["list"], ...), "data": (list[entry], ...), **more}  # type: ignore[valid-type]
    return create_model(f"{entry.__name__}List", **fields)


def _recent_request() -> type[BaseModel]:
    """Its fields are numbers and texts; None in an example stands for a number that may be unknown."""
    recent, record = RecentRequests(), RequestRecord(endpoint="")
    record.end()
    recent.add(record)
    fields: dict[str, Any] = {
        name: (float | None if value is None else type(value), ...) for name, value in recent.last(1)[0].items()
    }
    return create_model("RequestRecord", **fields)
