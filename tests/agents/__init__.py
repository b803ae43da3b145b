"""Coding agents at work on the real stack, with a model whose answers a script decides."""
