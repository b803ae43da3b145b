"""Adapters as a router sees them: listed, looked up, and loaded by administrators."""
