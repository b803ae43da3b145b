"""A client of OpenAI-compatible servers: ours, vLLM's, OpenAI's own."""
