"""The only door to vLLM. `tests/vllm/private_names.py` lists every private name of vLLM that RayLLM uses.

vLLM is imported inside functions: importing it takes tens of seconds and reads environment variables once.
"""
