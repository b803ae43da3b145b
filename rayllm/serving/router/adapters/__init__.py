"""Adapters as a router sees them: listed, looked up, and registered by administrators."""
