"""Listening sockets that outlive router processes. Process: router; a small process of its own (`socket_keeper`)."""
