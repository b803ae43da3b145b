"""Policy hooks: users' functions that see requests and their usage.

Process: router; the functions run in a child process (`worker_process`).
"""
