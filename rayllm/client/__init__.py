"""Client for OpenAI-compatible servers: RayLLM, vLLM, OpenAI."""
