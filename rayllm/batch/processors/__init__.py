"""Processors: pipelines of stages over a Ray Data dataset.

Importing the package registers the builder of each kind of configuration.
"""

from rayllm.batch.processors import kinds

__all__ = ["kinds"]
