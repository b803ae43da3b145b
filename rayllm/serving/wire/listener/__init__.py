"""Listening sockets that outlive the router processes that accept from them.

Process: router; a small process of its own (`socket_keeper`).
"""
