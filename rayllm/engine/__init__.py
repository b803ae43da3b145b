"""The engine: vLLM and its OpenAI application inside the replica's process."""
