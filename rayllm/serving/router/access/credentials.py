"""The credentials that a service accepts: keys of a file, and tokens of an issuer."""

import asyncio
import logging

from rayllm.access import ANYONE, NO_KEYS, Caller, KeyFile, Keyring
from rayllm.access.limits import limits_of
from rayllm.access.oidc import PREFIX
from rayllm.config import OidcConfig, RouterConfig
from rayllm.core.errors import ConfigError, StorageError, UnavailableError
from rayllm.serving.router.access.token_issuer import TokenIssuer

logger = logging.getLogger(__name__)

# Seconds between two reads of the key file.
_PERIOD_S = 2.0


class Credentials:
    """The file of keys and the issuer of tokens, both watched.

    A new configuration with the same file or issuer keeps it: the last valid keys stay in force.
    """

    def __init__(self) -> None:
        self._keys: KeyWatcher | None = None
        self.issuer: TokenIssuer | None = None

    async def configure(self, config: RouterConfig) -> None:
        """Watch only the file and the issuer of a configuration."""
        await self._watch_keys(config.keys)
        self._watch_issuer(config.oidc)

    async def stop(self) -> None:
        await self._watch_keys(None)
        self._watch_issuer(None)

    @property
    def keyring(self) -> Keyring:
        """The keys in force. Raises UnavailableError if the file of keys has never been valid."""
        return self._keys.keyring if self._keys else NO_KEYS

    @property
    def have_limits(self) -> bool:
        """Whether a key in force, or a token, is limited."""
        are_tokens_limited = self.issuer is not None and bool(limits_of(self.issuer.config))
        return are_tokens_limited or (self._keys is not None and self._keys.has_limits)

    def caller_named(self, name: str, models: tuple[str, ...] | None, tenant: str = "") -> Caller:
        """The caller with a name, for requests accepted earlier, as in a batch.

        Args:
            name: name of a key or token; empty for anyone.
            models, tenant: rights of a token. Keys have their own.

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


class KeyWatcher:
    """The keys of a file, read again every few seconds. The last valid keys stay in force while the file is invalid."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._file = KeyFile(uri)
        self._content = b""
        self._keyring: Keyring | None = None
        self._fault = ""
        self._watching: asyncio.Task[None] | None = None

    @property
    def keyring(self) -> Keyring:
        """The keys in force. Raises UnavailableError if the file has not been valid since the router's start."""
        if self._keyring is None:
            raise UnavailableError("The service cannot read its keys; its log says why.", None, "keys_unavailable", 5)
        return self._keyring

    @property
    def has_limits(self) -> bool:
        return self._keyring is not None and any(key.caller.limits for key in self._keyring.keys)

    async def start(self) -> None:
        """Read the file, and watch the file from now on."""
        await asyncio.to_thread(self.read)
        self._watching = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Stop watching. The keys stay in force."""
        if self._watching:
            self._watching.cancel()

    def read(self) -> None:
        """Apply the file if its content has changed. Blocks."""
        try:
            content = self._file.read()
            if content != self._content:
                self._keyring = self._file.parse(content).keyring
                self._content = content
                logger.info("%s: %d keys", self.uri, len(self._keyring.keys))
            elif self._fault:
                logger.info("%s: the file is valid again", self.uri)
            self._fault = ""
        except (ConfigError, StorageError) as error:
            self._report(error.message)
        except Exception as error:
            logger.exception("%s: cannot be read", self.uri)
            self._report(repr(error))

    def _report(self, fault: str) -> None:
        if fault != self._fault:
            effect = "The last valid keys stay in force" if self._keyring else "All requests are refused"
            logger.error("%s until this is repaired: %s", effect, fault)
            self._fault = fault

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await asyncio.to_thread(self.read)
