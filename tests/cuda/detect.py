"""Prints what Ray and vLLM detect of each card, eight of them and one: JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager as RayGpus
from vllm.platforms import current_platform

from tests.cuda.cards import CARDS
from tests.cuda.driver import Card, insert


def detect(card: Card, count: int) -> dict[str, Any]:
    """What they detect of a machine with these cards."""
    insert(Path(os.environ["FAKE_DRIVER"]), card, count)
    current_platform.get_device_capability.cache_clear()
    return {
        "ray": [RayGpus.get_current_node_accelerator_type(), RayGpus.get_current_node_num_accelerators()],
        "platform": type(current_platform).__name__,
        "name": current_platform.get_device_name(count - 1),
        "capability": ".".join(map(str, current_platform.get_device_capability(count - 1))),
        "memory": current_platform.get_device_total_memory(count - 1) >> 20,
    }


if __name__ == "__main__":
    print(json.dumps({name: {count: detect(card, count) for count in (1, 8)} for name, card in CARDS.items()}))
