"""The model's process: an engine, and what stands before it."""
