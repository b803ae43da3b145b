"""Supervision of the engine's processes."""
