"""Routing policies: the order in which replicas are tried."""
