"""Estimates the GPU memory that a model needs, from its configuration and the headers of its weights."""
