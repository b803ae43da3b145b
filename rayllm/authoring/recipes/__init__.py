"""Recipes of vLLM's recipes repository: what a model needs, translated to the keys of a model's file."""
