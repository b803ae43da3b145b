"""Faults under load: an application whose processes are killed and stopped, and clients with known right answers."""
