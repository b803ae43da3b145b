"""HTTP client for one OpenAI-compatible server."""
