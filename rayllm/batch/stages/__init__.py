"""Stages, one module each. A stage takes rows and returns as many, each with the keys that it adds."""
