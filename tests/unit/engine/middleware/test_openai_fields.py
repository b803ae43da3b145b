"""Fields of OpenAI's API that vLLM does not know, or does not keep to."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES
from rayllm.core.errors import RequestError
from rayllm.engine.middleware.request_rewriting import rewrite_request
from rayllm.engine.request_plan import RequestPlan

SCORE = {"model": "omni-moderation-latest", "policy": {"input": {"mode": "score"}}}


@pytest.mark.parametrize(
    ("path", "sent", "param", "said"),
    [
        (CHAT, {"functions": [{"name": "f"}], "function_call": "none"}, "functions", "send `tools` and `tool_choice`"),
        (CHAT, {"moderation": SCORE}, "moderation", "router.guards"),
        (RESPONSES, {"moderation": SCORE}, "moderation", "/v1/moderations"),
        (CHAT_BATCH, {"modalities": ["text", "audio"], "audio": {"voice": "alloy"}}, "modalities", "text only"),
    ],
)
def test_what_the_answer_would_lack_is_refused(path: str, sent: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        rewrite_request(path, sent, RequestPlan())
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (CHAT, {"functions": [], "function_call": "auto", "modalities": ["text"], "audio": {"voice": "alloy"}}),
        (CHAT, {"modalities": "audio", "verbosity": "low", "web_search_options": {}}),
        (RESPONSES, {"include": ["reasoning.encrypted_content", 7, "x"], "service_tier": "priority"}),
        (RESPONSES, {"include": "web_search_call.results", "service_tier": ["fast"]}),
        (COMPLETIONS, {"functions": [1], "moderation": SCORE}),
        (MESSAGES, {"functions": [1]}),
    ],
)
def test_what_has_no_effect_is_left_to_vllm(path: str, sent: dict[str, Any]) -> None:
    assert rewrite_request(path, sent, RequestPlan()) == sent


def test_values_that_vllm_does_not_know_are_left_out() -> None:
    asked = ["web_search_call.action.sources", "reasoning.encrypted_content", "web_search_call.results"]
    sent = {"include": asked, "service_tier": "fast"}
    assert rewrite_request(RESPONSES, sent, RequestPlan()) == {"include": ["reasoning.encrypted_content"]}
    assert len(sent["include"]) == 3
