"""The engine: vLLM and its OpenAI application, inside the process that uses them.

Process: replica, and the engine actor of a batch.
"""
