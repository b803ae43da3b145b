"""Rewriting of requests before vLLM parses them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rayllm.config.model import ModelConfig, ModelLoadingConfig
from rayllm.core.endpoints import BY_PATH, CHAT, CHAT_BATCH, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES
from rayllm.core.errors import RequestError
from rayllm.engine.middleware.request_rewriting import rewrite_request
from rayllm.engine.request_plan import RequestPlan, plan_requests

PLAN = RequestPlan(stop=("END",), stop_token_ids=(7,), defaults={"temperature": 0.5, "max_tokens": 9})


@pytest.mark.parametrize(
    ("path", "sent", "stop"),
    [
        (CHAT, {}, ["END"]),
        (CHAT, {"stop": None}, ["END"]),
        (COMPLETIONS, {"stop": "x"}, ["x", "END"]),
        (RESPONSES, {"stop": ["x", "END"]}, ["x", "END"]),
        (CHAT, {"stop": 3}, 3),
    ],
)
def test_stops_are_added_to_the_requests_own(path: str, sent: dict[str, Any], stop: Any) -> None:
    assert rewrite_request(path, sent, PLAN)["stop"] == stop


def test_anthropics_stops_have_their_own_name() -> None:
    shaped = rewrite_request(MESSAGES, {"stop_sequences": ["x"]}, PLAN)
    assert (shaped["stop_sequences"], "stop" in shaped) == (["x", "END"], False)


@pytest.mark.parametrize(
    ("sent", "temperature", "max_tokens"),
    [
        ({}, 0.5, 9),
        ({"temperature": 0}, 0, 9),
        ({"temperature": None}, 0.5, 9),
        ({"max_tokens": 3}, 0.5, 3),
        ({"max_completion_tokens": 3}, 0.5, None),
    ],
)
def test_the_request_wins_over_defaults(sent: dict[str, Any], temperature: float, max_tokens: int | None) -> None:
    shaped = rewrite_request(CHAT, sent, PLAN)
    assert shaped["temperature"] == temperature
    assert shaped.get("max_tokens") == max_tokens


@pytest.mark.parametrize("path", [*BY_PATH])
def test_a_null_is_an_absent_value(path: str) -> None:
    sent = {"tools": [], "tool_choice": None, "min_tokens": None, "echo": None, "background": None, "nvext": None}
    assert rewrite_request(path, sent, RequestPlan()) == {"tools": []}
    assert rewrite_request(path, {"tool_choice": "none"}, RequestPlan()) == {"tool_choice": "none"}


def test_a_null_that_means_something_stays() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    schema = {"enum": ["a", None], "const": None, "properties": {"a": {"default": None}}}
    sent = {
        "messages": [{"role": "assistant", "content": None, "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "chat_template_kwargs": {"a": None},
        "metadata": {"a": None},
    }
    assert rewrite_request(CHAT, sent, RequestPlan()) == sent
    constraint = {"structured_outputs": {"json": schema}}
    assert rewrite_request(CHAT, constraint, RequestPlan()) == constraint


def test_items_and_their_parts_have_no_nulls() -> None:
    """vLLM gives them the ids and details that are absent, but not those that are null."""
    image = {"type": "input_image", "image_url": "data:", "detail": None, "file_id": None}
    items = [
        {"type": None, "id": None, "role": "user", "content": [image, {"type": "input_text", "text": "a"}]},
        {"type": "function_call_output", "id": None, "call_id": "c", "output": "x", "status": None},
    ]
    assert rewrite_request(RESPONSES, {"input": items}, RequestPlan())["input"] == [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "data:", "detail": "auto"},
                {"type": "input_text", "text": "a"},
            ],
        },
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]


def test_defaults_go_by_the_names_of_each_endpoint() -> None:
    plan = RequestPlan(defaults={"max_tokens": 9, "length_penalty": 0.1, "top_k": 4})
    assert rewrite_request(RESPONSES, {"input": "a"}, plan) == {"input": "a", "max_output_tokens": 9, "top_k": 4}
    assert rewrite_request(MESSAGES, {"max_tokens": 3}, plan) == {"max_tokens": 3, "top_k": 4}
    assert rewrite_request(COMPLETIONS, {"prompt": "a"}, plan) == {
        "prompt": "a",
        "max_tokens": 9,
        "length_penalty": 0.1,
        "top_k": 4,
    }
    plan = RequestPlan(defaults={"max_completion_tokens": 9})
    assert rewrite_request(COMPLETIONS, {"prompt": "a"}, plan) == {"prompt": "a", "max_tokens": 9}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/embeddings", "/v1/score", "/v1/messages/count_tokens"])
def test_what_generates_nothing_gets_no_sampling_values(path: str) -> None:
    assert rewrite_request(path, {"prompt": "a"}, PLAN) == {"prompt": "a"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", True),
        ("previous_response_id", "resp_1"),
        ("conversation", "c"),
        ("background", True),
    ],
)
def test_responses_are_not_stored_and_say_so(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        rewrite_request(RESPONSES, {"input": "a"} | {field: value}, PLAN)
    assert caught.value.param == field
    assert rewrite_request(CHAT, {field: value}, RequestPlan()) == {field: value}


def test_a_response_that_is_not_to_be_stored_is_answered() -> None:
    sent = {"input": "a", "store": False, "background": False}
    assert rewrite_request(RESPONSES, {**sent, "previous_response_id": None}, RequestPlan()) == sent


def test_the_callers_body_is_left_as_it_is() -> None:
    sent = {"stop": ["x"], "chat_template_kwargs": {"a": 1}, "add_special_tokens": True, "prompt": ["<s>a"]}
    before = copy.deepcopy(sent)
    rewrite_request(CHAT, sent, RequestPlan(stop=("END",), owns_template=True, bos="<s>", tokenizer_adds_bos=True))
    rewrite_request(COMPLETIONS, sent, RequestPlan(stop=("END",), bos="<s>", tokenizer_adds_bos=True))
    assert sent == before


@pytest.mark.parametrize(
    ("adds", "prompt", "engine_gets"),
    [
        (True, "a", "a"),
        (True, "<s>a", "a"),
        (True, "<s><s>a", "a"),
        (False, "a", "<s>a"),
        (False, "<s>a", "<s>a"),
        (True, ["<s>a", "b"], ["a", "b"]),
        (True, "<s>" * 300_000 + "a<s>", "a<s>"),
        (False, [1, 2], [1, 2]),
        (False, [[1], [2]], [[1], [2]]),
        (True, 7, 7),
    ],
)
def test_a_completion_has_one_bos(adds: bool, prompt: Any, engine_gets: Any) -> None:
    plan = RequestPlan(bos="<s>", tokenizer_adds_bos=adds)
    assert rewrite_request(COMPLETIONS, {"prompt": prompt}, plan)["prompt"] == engine_gets


def test_a_client_that_wants_no_special_tokens_gets_none() -> None:
    plan = RequestPlan(bos="<s>", tokenizer_adds_bos=False)
    assert rewrite_request(COMPLETIONS, {"prompt": "a", "add_special_tokens": False}, plan)["prompt"] == "a"


def test_a_chat_has_one_bos_when_the_tokenizer_is_asked_for_it() -> None:
    plan = RequestPlan(owns_template=True, bos="<s>", tokenizer_adds_bos=True)
    shaped = rewrite_request(CHAT, {"add_special_tokens": True, "chat_template_kwargs": {"a": 1}}, plan)
    assert shaped["chat_template_kwargs"] == {"a": 1, "omit_bos": True}
    assert "chat_template_kwargs" not in rewrite_request(CHAT, {}, plan)


@pytest.mark.parametrize("fields", [{"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": "a", "logprobs": 1}])
def test_beam_search_echoes_one_text(fields: dict[str, Any]) -> None:
    beams = {"use_beam_search": True, "echo": True, "n": 2}
    with pytest.raises(RequestError) as caught:
        rewrite_request(COMPLETIONS, {**beams, **fields}, RequestPlan())
    assert caught.value.param == "echo"
    for allowed in ({**beams, "prompt": "a"}, {**beams, "prompt": ["a"]}, {**beams, **fields, "echo": False}):
        assert rewrite_request(COMPLETIONS, allowed, RequestPlan()) == allowed


GUARDED = {"priority": 0, "kv_transfer_params": {"remote_host": "x"}, "ec_transfer_params": {}}


@pytest.mark.parametrize("path", [*BY_PATH])
@pytest.mark.parametrize("field", GUARDED)
def test_fields_that_touch_others_need_to_be_allowed(path: str, field: str) -> None:
    with pytest.raises(RequestError, match=rf"`allowed_request_fields: \[{field}\]` in its file") as caught:
        rewrite_request(path, {field: GUARDED[field]}, RequestPlan())
    assert caught.value.param == field
    with pytest.raises(RequestError, match=f"`vllm_xargs.{field}`") as caught:
        rewrite_request(path, {"vllm_xargs": {field: "x"}}, RequestPlan())
    assert caught.value.param == "vllm_xargs"
    assert rewrite_request(path, {field: None}, RequestPlan()).get(field) is None
    allowed = RequestPlan(allowed_fields=(field,))
    assert rewrite_request(path, {field: GUARDED[field]}, allowed)[field] == GUARDED[field]
    for other in GUARDED.keys() - {field}:
        with pytest.raises(RequestError):
            rewrite_request(path, {other: GUARDED[other]}, allowed)


@pytest.mark.parametrize("path", [*BY_PATH])
def test_no_forged_envelope_reaches_a_backend(path: str) -> None:
    sent = {"vllm_xargs": {"rayllm_guided": "forged", "mine": 1}}
    assert rewrite_request(path, sent, RequestPlan(takes_backends=True))["vllm_xargs"] == {"mine": 1}
    assert sent["vllm_xargs"]["rayllm_guided"] == "forged"


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, CHAT_BATCH])
def test_endpoints_without_guided_decoding_refuse_backends(path: str) -> None:
    with pytest.raises(RequestError, match="work with /v1/chat/completions and /v1/completions only") as caught:
        rewrite_request(path, {"nvext": {"guided_decoding_backend": "fancy"}}, RequestPlan(takes_backends=True))
    assert caught.value.param == "nvext.guided_decoding_backend"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_an_nvext_that_is_no_object_is_refused(path: str) -> None:
    with pytest.raises(RequestError, match="must be an object") as caught:
        rewrite_request(path, {"nvext": "x"}, RequestPlan())
    assert caught.value.param == "nvext"


def test_the_models_file_says_which() -> None:
    model = ModelConfig(model_loading_config=ModelLoadingConfig(model_id="m"), allowed_request_fields=("priority",))
    assert plan_requests(model, None).allowed_fields == ("priority",)


def test_a_default_of_the_models_own_is_not_the_clients() -> None:
    assert rewrite_request(CHAT, {}, RequestPlan(defaults={"priority": 3}))["priority"] == 3


TEXT, REFUSAL = {"type": "output_text", "text": "Paris", "annotations": []}, {"type": "refusal", "refusal": "No."}


@pytest.mark.parametrize(
    ("parts", "text"),
    [([TEXT], "Paris"), ([TEXT, {"type": "text", "text": "!"}], "Paris!"), ([REFUSAL, TEXT], "No.Paris"), ([], "")],
)
def test_the_parts_of_an_earlier_answer_become_one_text(parts: list[Any], text: str) -> None:
    user = {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    answer = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": parts}
    items = rewrite_request(RESPONSES, {"input": [user, answer]}, PLAN)["input"]
    assert items == [user, {"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": [{"type": "output_text"}]},
        {"role": "assistant", "content": ["a"]},
    ],
)
def test_what_is_no_list_of_texts_is_left_to_vllm(item: dict[str, Any]) -> None:
    assert rewrite_request(RESPONSES, {"input": [item]}, PLAN)["input"] == [item]


SEARCH = {"type": "web_search"}


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, COUNT_TOKENS])
def test_hosted_tools_that_are_left_in_a_request_are_refused(path: str) -> None:
    with pytest.raises(RequestError, match=r"`tools\[1\]` of the type `web_search`") as caught:
        rewrite_request(path, {"tools": [{"name": "f", "input_schema": {}}, SEARCH]}, RequestPlan())
    assert caught.value.param == "tools"
    preview = {"tools": [{"type": "web_search_preview"}]}
    with pytest.raises(RequestError):
        rewrite_request(path, preview, RequestPlan())
    assert rewrite_request(path, preview, RequestPlan(has_tool_server=True)) == preview


def test_the_models_file_says_whether_there_is_a_tool_server() -> None:
    source = ModelLoadingConfig(model_id="m")
    model = ModelConfig(model_loading_config=source, engine_kwargs={"tool_server": "demo"})
    assert plan_requests(model, None).has_tool_server
    assert not plan_requests(ModelConfig(model_loading_config=source), None).has_tool_server


def test_documents_reach_the_prompt() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}
    for path in (MESSAGES, COUNT_TOKENS):
        body = rewrite_request(path, {"messages": [{"role": "user", "content": [document]}]}, RequestPlan())
        assert body == {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}


THINKING, ANSWERING = {"thinking": True, "enable_thinking": True}, {"thinking": False, "enable_thinking": False}
BUDGET = {"type": "enabled", "budget_tokens": 2000}


@pytest.mark.parametrize(
    ("path", "body", "switches"),
    [
        (CHAT, {}, None),
        (CHAT, {"reasoning_effort": "low"}, THINKING),
        (CHAT, {"reasoning_effort": "none"}, ANSWERING),
        (CHAT, {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}}, {"thinking": True}),
        (CHAT, {"reasoning_effort": "none", "chat_template_kwargs": {"x": 1}}, {**ANSWERING, "x": 1}),
        (CHAT, {"reasoning_effort": 7, "thinking": 7}, None),
        (RESPONSES, {"reasoning": {"effort": "none"}}, ANSWERING),
        (RESPONSES, {"reasoning": 7}, None),
        (MESSAGES, {"thinking": {"type": "disabled"}}, ANSWERING),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, THINKING),
        (MESSAGES, {"thinking": BUDGET}, THINKING),
        (COUNT_TOKENS, {"thinking": {"type": "disabled"}}, ANSWERING),
        (MESSAGES, {"thinking": 7, "reasoning_effort": "none"}, None),
    ],
)
def test_templates_are_told_whether_to_think(path: str, body: dict[str, Any], switches: Any) -> None:
    for plan in (RequestPlan(has_template=True, limits_thinking=True), RequestPlan(limits_thinking=True)):
        rewritten = rewrite_request(path, body, plan)
        # Tokenizers with code in place of a template refuse variables.
        expected = switches if plan.has_template else body.get("chat_template_kwargs")
        assert rewritten.pop("chat_template_kwargs", None) == expected
        assert rewritten == {name: value for name, value in body.items() if name != "chat_template_kwargs"}


def test_a_budget_that_the_engine_cannot_keep_is_left_out() -> None:
    assert rewrite_request(MESSAGES, {"thinking": BUDGET}, RequestPlan())["thinking"] == {"type": "adaptive"}
    # vLLM refuses these by name.
    for budget in (0, -1, "2000", None):
        thinking = {"type": "enabled", "budget_tokens": budget}
        assert rewrite_request(MESSAGES, {"thinking": thinking}, RequestPlan())["thinking"] == thinking


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_several_likeliest_answers_are_drawn_from_one_token_each(path: str) -> None:
    asked = {"temperature": 0, "n": 3}
    assert rewrite_request(path, asked, RequestPlan()) == {"temperature": 1, "top_k": 1, "n": 3}
    for other in ({"temperature": 0}, {"temperature": 0, "n": 1}, {**asked, "use_beam_search": True}, {"n": 3}):
        assert rewrite_request(path, other, RequestPlan()) == other
    assert rewrite_request(path, {"n": 3}, RequestPlan(defaults={"temperature": 0}))["top_k"] == 1
