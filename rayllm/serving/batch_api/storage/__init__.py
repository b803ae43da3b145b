"""Stores of files and batches in one folder, and their quotas."""
