"""The adapters of one engine: loading, refreshing and dropping them.

Process: replica, and the engine actor of a batch.
"""
