"""An engine without a server, and what it says of itself.

A program of its own, `python -m tests.gpu.engine_facts JSON`, since vLLM keeps its state in the process. JSON is a
mapping of vLLM's engine arguments; the last line of stdout is a mapping of figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

PROMPT = [5, 6, 7, 8]
TOKENS = 128


def facts(arguments: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, generate once, and put it to sleep and wake it where `enable_sleep_mode` is set."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    import torch
    from vllm import LLM, SamplingParams

    started = time.monotonic()
    engine = LLM(**arguments)
    ready = time.monotonic()
    config = engine.llm_engine.vllm_config
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)

    def generate() -> list[int]:
        [output] = engine.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    first = generate()
    begun = time.monotonic()
    again = generate()
    found = {
        "blocks": config.cache_config.num_gpu_blocks,
        "block": config.cache_config.block_size,
        "graphs": str(config.compilation_config.cudagraph_mode),
        "start_s": ready - started,
        "tokens_per_s": TOKENS / (time.monotonic() - begun),
        "is_repeatable": first == again,
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        found |= {"used": total - free, "total": total}
    if arguments.get("enable_sleep_mode"):
        engine.sleep(level=1)
        if torch.cuda.is_available():
            found["free_asleep"] = torch.cuda.mem_get_info()[0]
        engine.wake_up()
        found["is_same_awake"] = generate() == first
    return found


if __name__ == "__main__":
    print(json.dumps(facts(json.loads(sys.argv[1]))))
