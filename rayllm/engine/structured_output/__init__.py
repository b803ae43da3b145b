"""Structured output: clients' constraints are checked, and rewritten, before the engine compiles them."""
