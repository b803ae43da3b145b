"""The only door to vLLM. `private_names` lists every private name of vLLM that RayLLM uses.

vLLM is imported inside functions: importing it takes tens of seconds and reads environment variables once.
"""
