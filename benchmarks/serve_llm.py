"""ray.serve.llm with one model in a cluster of its own, until SIGTERM: `python -m benchmarks.serve_llm CONFIG PORT`.

`CONFIG` is an `LLMConfig` in JSON.
"""

from __future__ import annotations

import json
import signal
import sys

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

# It asks for whole CPUs for processes that hardly use one; they are there to schedule by, not to compute with.
LOGICAL_CPUS = 8


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config, port = json.loads(sys.argv[1]), int(sys.argv[2])
    ray.init(address="local", namespace="serve", num_cpus=LOGICAL_CPUS)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build_openai_app({"llm_configs": [LLMConfig(**config)]}), blocking=False)
        signal.pause()
    except KeyboardInterrupt:
        serve.shutdown()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
