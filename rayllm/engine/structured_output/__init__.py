"""Checks and rewrites clients' constraints on structured output before the engine compiles the constraints.

Process: replica; `sandbox_process` is a process of its own.
"""
