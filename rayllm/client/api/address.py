"""Address of a server."""

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
    """Base URL of a server without the API version: `http://host:port`, perhaps with a path."""

    root: str
    version: str = "v1"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address, with or without `/v1` at its end; the default scheme is `http`.

        Raises:
            ConfigError: it is invalid.
        """
        url = (text if "://" in text else f"http://{text}").strip().rstrip("/")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"`{text}` is not a valid address: {error}.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ConfigError(f"`{text}` is not an address such as http://127.0.0.1:8000.")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigError("an address must have no password and no query; --api-key-env names a key's variable.")
        version = _VERSION.search(parts.path)
        return cls(url[: -len(version[0])], version[1]) if version else cls(url)

    def __str__(self) -> str:
        return self.root

    def api(self, path: str) -> str:
        """URL of an endpoint of OpenAI's API, such as `models`."""
        return f"{self.root}/{self.version}/{path}"

    @property
    def proxy(self) -> str | None:
        """Proxy from the environment; None for this machine."""
        parts = urlsplit(self.root)
        host = parts.hostname or ""
        return None if is_loopback(host) or proxy_bypass(host) else getproxies().get(parts.scheme)
