"""What this machine has, and whether RayLLM can run on it."""
