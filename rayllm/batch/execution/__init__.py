"""How Ray Data runs a processor: placement, engine workers, checkpoints and progress."""
