"""Estimates the memory that a model needs, from its configuration and the headers of its weights.

Process: command line and replica.
"""
