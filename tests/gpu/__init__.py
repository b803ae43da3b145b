"""What only a GPU can show: `make test-gpu`. `pytest tests/gpu --device cpu` rehearses most of it without one."""
