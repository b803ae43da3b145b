"""How Ray Data runs a processor: placement, engine workers, checkpoints and progress.

Process: driver of a batch job, and its Ray Data workers.
"""
