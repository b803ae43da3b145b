"""What a job has written already, so that it is not done again.

Ray Data notes the ids of rows beside the files that it writes, in two phases: files of a write that was broken off
are taken away when the job is started again. Its own filter for what is noted wants actors, and so CPUs that a small
machine does not have; here the rows are left out where they are first looked at.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import ray
from pyarrow.fs import FileSelector, FileType
from ray.data import Dataset
from ray.data.checkpoint import CheckpointConfig, IdColumnCheckpointManager

from rayllm.batch.config import Checkpoint
from rayllm.errors import ConfigError
from rayllm.storage import open_folder

# Ray Data's mark on notes of writes that are not over.
_PENDING = ".pending.parquet"


def keep_checkpoints(dataset: Dataset, wanted: Checkpoint) -> None:
    """Have whatever writes `dataset`, or what comes of it, note the rows.

    Raises:
        ConfigError: Ray Data can note no rows of such an input.
    """
    filesystem, path = open_folder(wanted.path)
    try:
        dataset.context.checkpoint_config = CheckpointConfig(
            wanted.id_column,
            path,
            override_filesystem=filesystem,
            delete_checkpoint_on_success=wanted.delete_on_success,
            checkpoint_manager_cls=_Cleaner,
        )
    except Exception as error:  # Ray Data's own kind of error is no public name
        raise ConfigError(f"checkpoint: {' '.join(str(error).split())}") from None


def written_ids(wanted: Checkpoint) -> pa.Array:
    """The ids of the rows that are noted as written."""
    filesystem, path = open_folder(wanted.path)
    found = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
    files = [i.path for i in found if i.type == FileType.File and not i.path.endswith(_PENDING)]
    if not files:
        return pa.array([])
    table = pads.dataset(files, filesystem=filesystem, format="parquet").to_table(columns=[wanted.id_column])
    return table.column(wanted.id_column).combine_chunks()


class Unwritten:
    """Leaves out the rows that are noted as written.

    Args:
        wanted: where they are noted.
    """

    def __init__(self, wanted: Checkpoint) -> None:
        self._column = wanted.id_column
        ids = written_ids(wanted)
        self._ids = ray.put(ids) if len(ids) else None

    def __call__(self, table: pa.Table) -> pa.Table:
        if table.schema.get_field_index(self._column) < 0:
            known = ", ".join(table.column_names)
            raise ConfigError(f"checkpoint: the input has no column `{self._column}`; it has {known}.")
        if self._ids is None or not table.num_rows:
            return table
        ids = ray.get(self._ids)
        values = table.column(self._column).cast(ids.type)
        return table.filter(pc.invert(pc.is_in(values, value_set=ids)))


class _Cleaner(IdColumnCheckpointManager):  # type: ignore[misc]  # Ray has no types
    """Takes away what a write that was broken off has left, and gives Ray Data nothing to filter."""

    def load_checkpoint(self, data_file_dir: str | None = None, data_file_filesystem: Any = None) -> tuple[None, int]:
        if data_file_dir is not None:
            self._clean_pending_checkpoints(data_file_dir, data_file_filesystem)
        return None, 0
