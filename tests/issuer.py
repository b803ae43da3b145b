"""An OpenID Connect issuer on this machine: signs tokens, and serves its public keys."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa


class Issuer:
    """The issuer.

    Attributes:
        url: its address.
        fetched: paths that it was asked for.
        is_away: whether it answers 500.
    """

    def __init__(self) -> None:
        self.url = ""
        self.fetched: list[str] = []
        self.is_away = False
        self._keys: dict[str, Any] = {}
        self.add_key("first")

    def add_key(self, kid: str, algorithm: str = "RS256") -> None:
        """Make a new key."""
        key: Any
        if algorithm.startswith("ES"):
            key = ec.generate_private_key(ec.SECP256R1())
        else:
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._keys[kid] = (algorithm, key)

    def drop_key(self, kid: str) -> None:
        del self._keys[kid]

    def token(self, kid: str = "first", **claims: Any) -> str:
        """A token of the first key; claims that are None are left out."""
        algorithm, key = self._keys[kid]
        usual = {"iss": self.url, "aud": "rayllm", "sub": "alice", "exp": time.time() + 600}
        kept = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(kept, key, algorithm, headers={"kid": kid})

    def document(self, path: str) -> dict[str, Any] | None:
        """What it serves."""
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [self._public(kid) for kid in self._keys]} if path == "/keys" else None

    def _public(self, kid: str) -> dict[str, Any]:
        algorithm, key = self._keys[kid]
        to_jwk = jwt.get_algorithm_by_name(algorithm).to_jwk
        return {**json.loads(to_jwk(key.public_key())), "kid": kid, "alg": algorithm, "use": "sig"}


@contextmanager
def listening() -> Iterator[Issuer]:
    """An issuer that listens."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.fetched.append(self.path)
            document = None if issuer.is_away else issuer.document(self.path)
            self.send_response(500 if document is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    yield issuer
    server.shutdown()
    server.server_close()
