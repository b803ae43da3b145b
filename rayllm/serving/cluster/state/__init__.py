"""Cluster-wide state: detached named actors, and start-up progress in Ray's key-value store.

Process: any, and the detached actors.
"""
