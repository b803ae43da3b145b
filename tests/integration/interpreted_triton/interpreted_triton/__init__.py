"""A backend of Triton for CPUs that compiles nothing: kernels run in Triton's interpreter (`TRITON_INTERPRET=1`).

vLLM's second model runner needs Triton, and vLLM uses Triton on CPUs only if there is a backend named `cpu`.
"""
