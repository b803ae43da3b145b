"""ASGI middleware around vLLM's application."""
