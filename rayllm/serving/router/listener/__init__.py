"""Listening sockets that outlive the router processes that accept from them."""
