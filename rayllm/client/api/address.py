"""Where a server is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rayllm.errors import ConfigError
from rayllm.hosts import is_loopback

_VERSION = re.compile(r"/(v\d+)$")


@dataclass(frozen=True)
class Address:
    """The address of a server, above its version: `http://host:port`, perhaps with a path."""

    root: str
    version: str = "v1"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address as people write it: with `/v1` at its end or without, and `http` where it names no scheme.

        Raises:
            ConfigError: it is none.
        """
        whole = (text if "://" in text else f"http://{text}").strip().rstrip("/")
        try:
            parts = urlsplit(whole)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"`{text}` is no address: {error}.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ConfigError(f"`{text}` is no address such as http://127.0.0.1:8000.")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigError("an address holds neither a password nor a query; --api-key-env names a key's variable.")
        version = _VERSION.search(parts.path)
        return cls(whole[: -len(version[0])], version[1]) if version else cls(whole)

    def __str__(self) -> str:
        return self.root

    def api(self, path: str) -> str:
        """The URL of a part of OpenAI's API, such as `models`."""
        return f"{self.root}/{self.version}/{path}"

    @property
    def proxy(self) -> str | None:
        """The proxy that the environment names for it; never one for this machine itself."""
        parts = urlsplit(self.root)
        host = parts.hostname or ""
        return None if is_loopback(host) or proxy_bypass(host) else getproxies().get(parts.scheme)
