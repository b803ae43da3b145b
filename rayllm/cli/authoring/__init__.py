"""Choosing a model's configuration, for `rayllm gen-config` and `rayllm run MODEL`."""
