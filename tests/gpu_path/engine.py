"""An engine of vLLM on a fake GPU that obeys the lines of its standard input.

`python -m tests.gpu_path.engine`: prints a line of JSON when the engine is ready or has failed, and one per command,
which is `say`, or a call of vLLM's `LLM` with its arguments, such as `["sleep", 1]`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.integration.service import DEMO

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    """Run until the standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    # The engine's processes write logs to theirs.
    os.dup2(2, 1)

    def reply(**values: Any) -> None:
        print(json.dumps(values), file=replies, flush=True)

    from vllm import LLM, SamplingParams

    weights = str(DEMO.parent / "rayllm-demo" / "weights")
    options: dict[str, Any] = {"max_model_len": 1024, "max_num_batched_tokens": 1024, "enforce_eager": True}
    try:
        engine = LLM(weights, dtype="float32", enable_sleep_mode=True, **options)
    except Exception as error:
        return reply(error=str(error))
    reply(value="ready")
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            if name == "say":
                [said] = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=16), use_tqdm=False)
                reply(value=said.outputs[0].text)
            else:
                reply(value=getattr(engine, name)(*args) and None)
        except Exception as error:
            reply(error=str(error))
    return None


if __name__ == "__main__":
    main()
