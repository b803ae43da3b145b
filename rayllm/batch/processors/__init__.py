"""Processors: pipelines of stages over a Ray Data dataset."""
