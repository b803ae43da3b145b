"""The model's process: an engine, with the middleware and life cycle around it."""
