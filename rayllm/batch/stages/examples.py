"""Made-up results, which give the columns and types of a block in which every row failed."""

from rayllm.batch.rows import Row

_LOGPROBS = [[{"token_id": 0, "logprob": 0.0, "rank": 0, "token": ""}]]
_CHOICE: Row = {
    "generated_text": "",
    "generated_tokens": [0],
    "num_generated_tokens": 0,
    "finish_reason": "",
    "stop_reason": "",
}
_PROMPT: Row = {"prompt": "", "prompt_token_ids": [0], "num_input_tokens": 0}
_CHOICE_LOGPROBS: Row = {"logprobs": _LOGPROBS, "cumulative_logprob": 0.0}

ENGINE: dict[str, Row] = {
    "generate": {
        **_PROMPT,
        **_CHOICE,
        "num_cached_tokens": 0,
        **_CHOICE_LOGPROBS,
        "prompt_logprobs": _LOGPROBS,
        "choices": [{**_CHOICE, **_CHOICE_LOGPROBS}],
    },
    "embed": {**_PROMPT, "embedding": [0.0]},
    "classify": {**_PROMPT, "probs": [0.0], "label": ""},
    "score": {"score": 0.0, "num_input_tokens": 0},
}
"""Results of an engine, by task."""

ANSWER: Row = {
    "id": "",
    "object": "",
    "created": 0,
    "model": "",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []},
            "text": "",
            "finish_reason": "",
        }
    ],
    "data": [{"index": 0, "object": "", "embedding": [0.0], "score": 0.0, "label": ""}],
    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
}
"""A response of any OpenAI-style endpoint."""
COMPLETION: Row = {**ANSWER, "generated_text": "", "finish_reason": "", "http_response": ANSWER}
"""Results of a request over HTTP to such an endpoint, beside the status."""
