"""The endpoints of models: offered by the router, answered by replicas."""

from typing import NamedTuple


class Endpoint(NamedTuple):
    """An endpoint of a model: its path, its task, and whether the body is a multipart form instead of JSON."""

    path: str
    does: str
    is_form: bool = False


CHAT = "/v1/chat/completions"
CHAT_BATCH = "/v1/chat/completions/batch"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
CLASSIFY = "/classify"
MODERATIONS = "/v1/moderations"
"""Answered by a router, which asks a guard."""

ENDPOINTS = (
    Endpoint(CHAT, "chat"),
    Endpoint(CHAT_BATCH, "chat"),
    Endpoint(COMPLETIONS, "text completion"),
    Endpoint(RESPONSES, "chat"),
    Endpoint(MESSAGES, "chat"),
    Endpoint(COUNT_TOKENS, "chat"),
    Endpoint("/generative_scoring", "scoring by generation"),
    Endpoint(EMBEDDINGS, "embeddings"),
    Endpoint("/v2/embed", "embeddings"),
    Endpoint("/pooling", "pooling"),
    Endpoint(CLASSIFY, "classification"),
    Endpoint("/score", "scoring"),
    Endpoint("/v1/score", "scoring"),
    Endpoint("/rerank", "reranking"),
    Endpoint("/v1/rerank", "reranking"),
    Endpoint("/v2/rerank", "reranking"),
    Endpoint("/v1/audio/transcriptions", "transcription", is_form=True),
    Endpoint("/v1/audio/translations", "translation", is_form=True),
    Endpoint(TOKENIZE, "tokenization"),
    Endpoint(DETOKENIZE, "tokenization"),
)
BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
IN_BATCHES = tuple(endpoint.path for endpoint in ENDPOINTS if not endpoint.is_form)
"""Paths of the endpoints that batches may ask."""
