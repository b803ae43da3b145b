"""A job with checkpoints, which a test kills: `python -m tests.integration.paced_job FOLDER`.

Its second half waits until FOLDER has a file `go`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import ray

from rayllm.batch import ActorStage, Checkpoint, Processor, ProcessorConfig

ROWS = 400


class Slow:
    """Takes a while for each row."""

    def __init__(self, go: Path) -> None:
        self._go = go

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        time.sleep(0.002 * len(rows))
        while rows[0]["id"] >= ROWS // 2 and not self._go.exists():
            time.sleep(0.05)
        return [{**row, "double": 2 * row["id"]} for row in rows]


def main() -> None:
    folder = Path(sys.argv[1])
    ray.init(address="local", num_cpus=4, include_dashboard=False)
    checkpoint = Checkpoint(path=str(folder / "notes"), id_column="id")
    processor = Processor(
        ProcessorConfig(batch_size=10, checkpoint=checkpoint, show_progress=False),
        postprocess_fn=lambda row: {"double": row["double"]},
    )
    made = {"go": folder / "go"}
    stage = ActorStage(fn=Slow, fn_constructor_kwargs=made, map_kwargs={"num_cpus": 1, "batch_size": 10})
    processor.append_stage("SlowStage", stage)
    processor.arrange_before("SlowStage", lambda dataset: dataset.repartition(target_num_rows_per_block=10))
    processor(ray.data.range(ROWS)).write_parquet(str(folder / "output"))


if __name__ == "__main__":
    main()
