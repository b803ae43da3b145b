"""Stores of files and batches in one folder, and their quotas. Process: router, and runner of a batch."""
