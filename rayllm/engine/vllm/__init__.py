"""All code that uses vLLM. `tests/vllm/private_names.py` lists every private name of vLLM that RayLLM uses.

vLLM is imported inside functions: the import takes seconds, and reads environment variables once.

Process: replica, and the engine actor of a batch; the LoRA and plugin modules run in engine workers.
"""
