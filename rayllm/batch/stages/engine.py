"""Run prompts through a vLLM engine."""

import json
from collections.abc import Mapping
from typing import Any

from rayllm.batch.execution.engine_worker import EngineWorker
from rayllm.batch.rows import Row
from rayllm.config import ModelConfig
from rayllm.core.asgi import call
from rayllm.core.errors import EngineError, RequestError
from rayllm.engine.vllm.generation import Prompt

Logprobs = list[list[dict[str, Any]]]
"""Per position, the candidate tokens with `token_id`, `logprob`, `rank` and `token`."""


class VLLMEngineStage:
    """Adds the engine's output to each row."""

    def __init__(self, model: ModelConfig, task: str, detokenize: bool = True, **options: Any) -> None:
        self._worker = EngineWorker(model, **options)
        self._server = self._worker.server
        self._model = model
        self._detokenize = detokenize
        self._work = getattr(self, f"_{task}")

    def __call__(self, rows: list[Row]) -> list[Row]:
        return self._worker.map(self._work, rows)

    def close(self) -> None:
        self._worker.close()

    async def _generate(self, row: Row) -> Row:
        sampling = _parameters(row, "sampling_params", "pooling_params")
        prompt = _prompt(row)
        output = await self._server.in_process.generate(prompt, sampling, row.get("model"), self._detokenize)
        choices = [_choice(choice, self._detokenize) for choice in output.outputs]
        result = {
            **row,
            **choices[0],
            "prompt": row.get("prompt") or output.prompt,
            "prompt_token_ids": list(output.prompt_token_ids),
            "num_input_tokens": len(output.prompt_token_ids),
            "num_cached_tokens": output.num_cached_tokens or 0,
            "num_generated_tokens": sum(choice["num_generated_tokens"] for choice in choices),
        }
        if output.prompt_logprobs is not None:
            result["prompt_logprobs"] = _logprobs(output.prompt_logprobs)
        return {**result, "choices": choices} if len(choices) > 1 else result

    async def _embed(self, row: Row) -> Row:
        vector, tokens = await self._pool("embed", row)
        return {**row, "embedding": vector, "num_input_tokens": tokens}

    async def _classify(self, row: Row) -> Row:
        probabilities, tokens = await self._pool("classify", row)
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        label = self._server.in_process.labels().get(best, str(best))
        return {**row, "probs": probabilities, "label": label, "num_input_tokens": tokens}

    async def _pool(self, task: str, row: Row) -> tuple[list[float], int]:
        parameters = _parameters(row, "pooling_params", "sampling_params")
        return await self._server.in_process.pool(task, _prompt(row), parameters, row.get("model"))

    async def _score(self, row: Row) -> Row:
        if row.get("text_1") is None or row.get("text_2") is None:
            raise RequestError("a row to score needs `text_1` and `text_2`.")
        body = {"model": self._model.model_id, "text_1": row["text_1"], "text_2": row["text_2"]}
        body |= _parameters(row, "pooling_params", "sampling_params")
        # vLLM's own endpoint knows how to join the two texts to one prompt.
        headers = {"content-type": "application/json"}
        response = await call(self._server.app, "/score", json.dumps(body).encode(), headers)
        content = json.loads(response.body)
        if response.status >= 400:
            error = EngineError if response.status >= 500 else RequestError
            raise error(content["error"]["message"])
        return {**row, "score": content["data"][0]["score"], "num_input_tokens": content["usage"]["prompt_tokens"]}


def _prompt(row: Row) -> Prompt:
    tokens = row.get("prompt_token_ids")
    images = list(row.get("images") or ())
    if tokens is not None:
        return Prompt(token_ids=[int(token) for token in tokens], images=images)
    if row.get("prompt") is None:
        raise RequestError("a row needs `messages`, a `prompt` or `prompt_token_ids`.")
    return Prompt(text=str(row["prompt"]), images=images, is_rendered=bool(row.get("is_rendered")))


def _parameters(row: Row, own: str, other: str) -> dict[str, Any]:
    """The row's parameters, without the nulls that columns of a dataset have."""
    if row.get(other):
        raise RequestError(f"`{other}` does not apply to this task; use `{own}`.")
    parameters = row.get(own) or {}
    if not isinstance(parameters, Mapping):
        raise RequestError(f"`{own}` must be a mapping, not {type(parameters).__name__}.")
    # A dataset has arrays in place of lists.
    given = {name: value for name, value in parameters.items() if value is not None}
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in given.items()}


def _choice(output: Any, has_text: bool) -> Row:
    # The engine always detokenizes requests with stop strings; an immediate stop leaves the text empty.
    is_at_stop_string = output.finish_reason == "stop" and isinstance(output.stop_reason, str)
    has_text = has_text or bool(output.text) or is_at_stop_string
    choice = {
        "generated_text": output.text if has_text else None,
        "generated_tokens": list(output.token_ids),
        "num_generated_tokens": len(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": None if output.stop_reason is None else str(output.stop_reason),
    }
    if output.logprobs is not None:
        choice |= {"logprobs": _logprobs(output.logprobs), "cumulative_logprob": output.cumulative_logprob}
    return choice


def _logprobs(positions: Any) -> Logprobs:
    """vLLM's logprobs as plain values, the chosen token of each position first."""
    return [
        [
            {"token_id": token, "logprob": each.logprob, "rank": each.rank, "token": each.decoded_token}
            for token, each in (position or {}).items()
        ]
        for position in positions
    ]
