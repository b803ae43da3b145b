"""ASGI middleware around vLLM's application, and the rewriting of requests.

Process: replica.
"""
