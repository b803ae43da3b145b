"""The features of a request that routing policies use."""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self


@dataclass(frozen=True)
class RoutingRequest:
    """The features of one request.

    Args:
        adapter: name of the adapter, "" for the base model.
        session: value of the session header, "" for none.
        prefix_digests: digests of prefixes of the prompt, shortest first, each covering all before it.
        prefix_tokens: approximate tokens that each prefix covers.
        affinity_key: digest that is the same for a whole conversation, or all questions on a document; 0 for none.
        affinity_tokens: tokens that the affinity key covers.
        group_key: digest of a long system prompt that conversations may share; 0 for none.
        is_follow_up: whether the conversation already has an answer.
        work: expected tokens of prompt and answer.
    """

    adapter: str = ""
    session: str = ""
    prefix_digests: tuple[int, ...] = ()
    prefix_tokens: tuple[int, ...] = ()
    affinity_key: int = 0
    affinity_tokens: int = 0
    group_key: int = 0
    is_follow_up: bool = False
    work: int = 1

    @property
    def prompt_tokens(self) -> int:
        """Tokens covered by the longest prefix; at least 1."""
        return max(1, self.prefix_tokens[-1]) if self.prefix_tokens else 1

    def with_target(self, adapter: str, session: str) -> Self:
        """The same request for an adapter ("" for the base model) and a session ("" for none)."""
        salt = _Salt(adapter) if adapter else int
        return replace(
            self,
            adapter=adapter,
            session=session,
            prefix_digests=tuple(salt(digest) for digest in self.prefix_digests),
            affinity_key=salt(self.affinity_key),
            group_key=salt(self.group_key),
        )


class _Salt:
    """Makes digests specific to an adapter, the same in every process; 0 (none) stays 0."""

    def __init__(self, adapter: str) -> None:
        self._hash = blake2b(adapter.encode("utf-8", "surrogatepass"), digest_size=8)

    def __call__(self, digest: int) -> int:
        salted = self._hash.copy()
        salted.update(digest.to_bytes(8, "big"))
        return int.from_bytes(salted.digest(), "big") if digest else 0
