"""The file of keys, read again every few seconds."""

from __future__ import annotations

import asyncio
import logging

from rayllm.access import KeyFile, Keyring
from rayllm.core.errors import ConfigError, StorageError, UnavailableError

logger = logging.getLogger(__name__)

# Seconds between two looks at the file.
_PERIOD_S = 2.0


class KeyWatcher:
    """The keys in a file, of which changes take effect within seconds.

    While the file cannot be read or is not valid, the last valid keys stay in force.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._file = KeyFile(uri)
        self._content = b""
        self._keyring: Keyring | None = None
        self._fault = ""
        self._watching: asyncio.Task[None] | None = None

    @property
    def keyring(self) -> Keyring:
        """The keys in force.

        Raises:
            UnavailableError: the file has not been valid since the router's start.
        """
        if self._keyring is None:
            raise UnavailableError("The service cannot read its keys; its log says why.", None, "keys_unavailable", 5)
        return self._keyring

    @property
    def has_limits(self) -> bool:
        """Whether a key in force is limited."""
        return self._keyring is not None and any(key.caller.limits for key in self._keyring.keys)

    async def start(self) -> None:
        """Read the file, and watch it from now on."""
        await asyncio.to_thread(self.read)
        self._watching = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Stop watching. The keys stay in force."""
        if self._watching:
            self._watching.cancel()

    def read(self) -> None:
        """Apply the file if it has changed. Blocks."""
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
        """Log a fault once."""
        if fault != self._fault:
            effect = "The last valid keys stay in force" if self._keyring else "All requests are refused"
            logger.error("%s until this is repaired: %s", effect, fault)
            self._fault = fault

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await asyncio.to_thread(self.read)
