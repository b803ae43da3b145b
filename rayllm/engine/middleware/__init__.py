"""What a request passes on its way into vLLM's application, and its reply on the way out: small ASGI layers."""
