"""Stores of files and batches in one folder, and quotas on them."""
