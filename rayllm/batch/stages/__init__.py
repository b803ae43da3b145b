"""Stages of processors, one module for each kind. Process: Ray Data worker."""
