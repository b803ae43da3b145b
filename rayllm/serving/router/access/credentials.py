"""What callers of a service may show: keys of a file, and tokens of an issuer."""

from __future__ import annotations

from rayllm.access import ANYONE, NO_KEYS, Caller, Keyring
from rayllm.access.limits import limits_of
from rayllm.access.oidc import PREFIX
from rayllm.config import OidcConfig, RouterConfig
from rayllm.serving.router.access.key_watcher import KeyWatcher
from rayllm.serving.router.access.token_issuer import TokenIssuer


class Credentials:
    """The file of keys and the issuer of tokens, both watched.

    A new configuration that names the same ones leaves them as they are: the last valid keys stay in force.
    """

    def __init__(self) -> None:
        self._keys: KeyWatcher | None = None
        self.issuer: TokenIssuer | None = None

    async def configure(self, config: RouterConfig) -> None:
        """Watch what the configuration names, and nothing else."""
        await self._watch_keys(config.keys)
        self._watch_issuer(config.oidc)

    async def stop(self) -> None:
        """Stop watching."""
        await self._watch_keys(None)
        self._watch_issuer(None)

    @property
    def keyring(self) -> Keyring:
        """The keys in force.

        Raises:
            UnavailableError: the file of keys has not been valid since the router's start.
        """
        return self._keys.keyring if self._keys else NO_KEYS

    @property
    def have_limits(self) -> bool:
        """Whether a key in force, or a token, is limited."""
        are_tokens_limited = self.issuer is not None and bool(limits_of(self.issuer.config))
        return are_tokens_limited or (self._keys is not None and self._keys.has_limits)

    def caller_named(self, name: str, models: tuple[str, ...] | None, tenant: str = "") -> Caller:
        """The caller with a name, for requests that it has sent before, as in a batch.

        Args:
            name: of a key or a token; "" is nobody's.
            models, tenant: those of a token. Keys have their own.

        Raises:
            AuthenticationError: the key has been revoked, or has expired.
            UnavailableError: the file of keys has not been valid since the router's start.
        """
        if name.startswith(PREFIX):
            limits = limits_of(self.issuer.config) if self.issuer else {}
            return Caller(name, tenant, models, limits=limits)
        return self._keys.keyring.named(name) if self._keys and name else ANYONE

    async def _watch_keys(self, uri: str | None) -> None:
        if self._keys and self._keys.uri != uri:
            self._keys.stop()
            self._keys = None
        if uri and self._keys is None:
            self._keys = KeyWatcher(uri)
            await self._keys.start()

    def _watch_issuer(self, config: OidcConfig | None) -> None:
        if self.issuer and self.issuer.config != config:
            self.issuer.stop()
            self.issuer = None
        if config and self.issuer is None:
            self.issuer = TokenIssuer(config)
            self.issuer.start()
