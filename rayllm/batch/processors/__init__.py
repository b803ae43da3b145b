"""Processors: pipelines of stages over a Ray Data dataset. Importing the package registers their builders.

Process: driver of a batch job.
"""

from rayllm.batch.processors import kinds

__all__ = ["kinds"]
