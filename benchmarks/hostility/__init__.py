"""Clients that mean harm, or are broken: what they send, and what that costs the others."""
