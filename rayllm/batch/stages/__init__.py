"""Stages of processors, one module for each kind."""
