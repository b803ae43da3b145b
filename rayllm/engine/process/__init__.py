"""Start and supervision of the engine's processes.

Process: replica; `fork_server` is a process of its own, and `parent_watch` runs in engine processes.
"""
