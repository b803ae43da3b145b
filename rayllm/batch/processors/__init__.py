"""Processors: pipelines of stages over a Ray Data dataset.

Importing the package registers the builder of each kind of configuration.
"""

from rayllm.batch.processors import http, request, vllm

__all__ = ["http", "request", "vllm"]
