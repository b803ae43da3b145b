"""Chunked bodies. Source: RFC 9112, section 7.1."""

LAST_CHUNK = b"0\r\n\r\n"
"""Ends a chunked body."""


def http_chunk(body: bytes) -> bytes:
    """One chunk; nothing for no bytes, which would end the body."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
