"""The only door to vLLM: its engine and its OpenAI server, inside the replica's process."""
