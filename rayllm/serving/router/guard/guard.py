"""Questions to one guard."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayllm.access import Caller
from rayllm.config import GuardConfig
from rayllm.core.asgi import Response
from rayllm.core.endpoints import CHAT, CLASSIFY
from rayllm.core.errors import GuardError, RateLimitError, RequestError
from rayllm.serving.router.guard.verdict import Verdict, of_answer, of_probabilities

# Most parts of a text; more are far beyond the context of any model.
_MAX_PARTS = 64
# Questions at once about a request or a reply.
_QUESTIONS_AT_ONCE = 4
# Most tokens of an answer; a verdict with its categories is shorter.
_MAX_TOKENS = 100
_SAFE = Verdict(False)
_LIMIT_HEADERS = ("retry-after", "x-should-retry", "x-ratelimit-", "anthropic-ratelimit-")


class GuardCaller(Caller):
    """The sender of a question to a guard. Hooks and guards do not see the question."""


@dataclass(eq=False)
class Guard:
    """Asks a guard about texts."""

    config: GuardConfig
    ask: Callable[..., Awaitable[Response]]
    labels_of: Callable[[str], Awaitable[Sequence[str]]]
    _labels: Sequence[str] = ()

    async def verdict(self, text: str, sender: GuardCaller, headers: Mapping[str, str], prompt: str = "") -> Verdict:
        """Ask about a text of any length.

        Args:
            text: a request, or a reply to `prompt`.
            prompt: what the text replies to, for guards that write an answer; empty for a request.

        Raises:
            GuardError: the guard fails or takes too long.
            RequestError: the text is too long.
        """
        parts = parts_of(text, self.config.question_chars)
        if len(parts) > _MAX_PARTS:
            longest = _MAX_PARTS * self.config.question_chars
            raise RequestError(
                f"The text is longer than the {longest:,} characters that `{self.config.model}` may be asked about."
            )
        room, verdict = asyncio.Semaphore(_QUESTIONS_AT_ONCE), _SAFE

        async def about(part: str) -> Verdict:
            async with room:
                return await self._in_time(part, sender, headers, prompt)

        for found in await asyncio.gather(*map(about, parts)):
            verdict |= found
        return verdict

    async def _in_time(self, text: str, sender: GuardCaller, headers: Mapping[str, str], prompt: str) -> Verdict:
        try:
            async with asyncio.timeout(self.config.timeout_s):
                if self.config.verdict == "labels":
                    return await self._classify(text, sender, headers)
                return await self._chat(text, sender, headers, prompt)
        except TimeoutError:
            raise GuardError(f"it gave no answer within {self.config.timeout_s:g} s (timeout_s)") from None

    async def _chat(self, text: str, sender: GuardCaller, headers: Mapping[str, str], prompt: str) -> Verdict:
        messages = [{"role": "user", "content": text}]
        if prompt:
            # The end of the prompt matters most.
            question = prompt[-self.config.question_chars :]
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
        answer = await self._post(
            CHAT, {"messages": messages, "temperature": 0, "max_tokens": _MAX_TOKENS}, sender, headers
        )
        return of_answer(_content(answer), self.config)

    async def _classify(self, text: str, sender: GuardCaller, headers: Mapping[str, str]) -> Verdict:
        if not self._labels:
            self._labels = await self.labels_of(self.config.model)
        answer = await self._post(CLASSIFY, {"input": text}, sender, headers)
        try:
            probabilities = answer["data"][0]["probs"]
        except (KeyError, IndexError, TypeError):
            raise GuardError("it answered without probabilities") from None
        return of_probabilities(self._labels, probabilities, self.config)

    async def _post(
        self, path: str, body: dict[str, Any], sender: GuardCaller, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        raw = json.dumps({"model": self.config.model, **body}).encode()
        reply = await self.ask(path, raw, {**headers, "content-type": "application/json"}, user=sender)
        try:
            answer: dict[str, Any] = json.loads(reply.body)
            message = "" if reply.status == 200 else str(answer["error"]["message"])[:500]
        except (ValueError, KeyError, TypeError):
            raise GuardError(f"it answered {reply.status} without an error object") from None
        if reply.status == 429:
            # A client asks at `/v1/moderations`, within its own limits.
            limits = {name: value for name, value in reply.headers.items() if name.startswith(_LIMIT_HEADERS)}
            raise RateLimitError(message, reply_headers=limits)
        if reply.status != 200:
            raise GuardError(f"it answered {reply.status}: {message}")
        return answer


def parts_of(text: str, length: int) -> list[str]:
    """Split a text into parts of a length, with an overlap in which a cut hides nothing."""
    overlap = length // 10
    starts = range(0, max(1, len(text) - overlap), length - overlap)
    return [text[start : start + length] for start in starts] if text else []


def _content(answer: dict[str, Any]) -> str:
    try:
        return str(answer["choices"][0]["message"]["content"])
    except (KeyError, IndexError, TypeError):
        raise GuardError("it answered without a message") from None
