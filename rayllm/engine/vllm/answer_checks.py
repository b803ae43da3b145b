"""Detects answers that end before their constraint is satisfied."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any

IsSatisfied = Callable[[str, str, str], Awaitable[bool]]


class _Answers:
    """The partial answers, as lists of texts or tokens, to a request with the given SamplingParams."""

    def __init__(self, params: Any) -> None:
        self._is_delta = params.output_kind.name == "DELTA"
        self._parts: defaultdict[int, list[Any]] = defaultdict(list)

    def extend(self, index: int, parts: Sequence[Any]) -> Sequence[Any]:
        """Add the `parts` in an output of vLLM to the answer of this index; returns the answer so far."""
        if not self._is_delta:
            return parts
        self._parts[index] += parts
        return self._parts[index]


class CutAnswers:
    """Detects answers that a stop text ends before the request's constraint, a kind and a text, is satisfied."""

    def __init__(self, params: Any, constraint: tuple[str, str], is_satisfied: IsSatisfied) -> None:
        self._constraint = constraint
        self._is_satisfied = is_satisfied
        self._answers = _Answers(params)

    async def check(self, output: Any) -> None:
        """Check an output of vLLM. Raises VLLMValidationError if it ends an answer too early."""
        from vllm.exceptions import VLLMValidationError

        for one in output.outputs:
            texts = self._answers.extend(one.index, [one.text])
            if one.finish_reason != "stop" or not isinstance(one.stop_reason, str):
                continue
            if not await self._is_satisfied(*self._constraint, "".join(texts)):
                raise VLLMValidationError(
                    f"The stop text {one.stop_reason[:40]!r} occurs in the answer before the answer satisfies its "
                    "constraint; leave the stop text out.",
                    parameter="stop",
                )


class UnendedReasoning:
    """Detects answers that end while the model reasons, when vLLM does not apply constraints yet.

    `parser_arguments` are the request's for the AsyncLLM's reasoning parser.
    """

    def __init__(self, params: Any, engine: Any, parser_arguments: dict[str, Any]) -> None:
        self._engine = engine
        self._parser_arguments = parser_arguments
        self._answers = _Answers(params)

    @cached_property
    def _parser(self) -> Any:
        from vllm.reasoning import ReasoningParserManager

        name = self._engine.vllm_config.structured_outputs_config.reasoning_parser
        parser = ReasoningParserManager.get_reasoning_parser(name)
        return parser(self._engine.get_tokenizer(), **self._parser_arguments)

    async def check(self, output: Any) -> None:
        """Check an output of vLLM. Raises VLLMValidationError if it ends an unconstrained answer."""
        from vllm.exceptions import VLLMValidationError

        for one in output.outputs:
            tokens = self._answers.extend(one.index, one.token_ids)
            if one.finish_reason != "stop":
                continue
            if not self._parser.is_reasoning_end([*(output.prompt_token_ids or ()), *tokens]):
                raise VLLMValidationError(
                    "The model ended its answer while it reasoned, before the constraint applied. Switch reasoning "
                    "off, or constrain the reasoning as well: "
                    "`engine_kwargs: {structured_outputs_config: {enable_in_reasoning: true}}`."
                )
