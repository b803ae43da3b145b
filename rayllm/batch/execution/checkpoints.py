"""Checkpoints: ids of the rows already written, which a restarted job skips.

Ray Data records the ids beside the files it writes, in two phases, and removes the files of an interrupted write on
restart. Its own filter for recorded ids runs in actors, which need CPUs that a small machine does not have; here the
job's first task filters instead.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import ray
from pyarrow.fs import FileSelector, FileType
from ray.data import Dataset
from ray.data.checkpoint import CheckpointConfig, IdColumnCheckpointManager

from rayllm.batch.config import Checkpoint
from rayllm.core.errors import ConfigError
from rayllm.sources.storage import open_folder

# Ray Data's suffix for the ids of writes in progress.
_PENDING = ".pending.parquet"


def keep_checkpoints(dataset: Dataset, checkpoint: Checkpoint) -> None:
    """Record the ids of rows when `dataset` is written. Raises ConfigError if Ray Data cannot for such an input."""
    filesystem, path = open_folder(checkpoint.path)
    try:
        dataset.context.checkpoint_config = CheckpointConfig(
            checkpoint.id_column,
            path,
            override_filesystem=filesystem,
            delete_checkpoint_on_success=checkpoint.delete_on_success,
            checkpoint_manager_cls=_Cleanup,
        )
    except Exception as error:  # Ray Data's exception is not public
        raise ConfigError(f"checkpoint: {' '.join(str(error).split())}") from None


class SkipWritten:
    """Filters out the rows that were already written."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._column = checkpoint.id_column
        filesystem, path = open_folder(checkpoint.path)
        infos = filesystem.get_file_info(FileSelector(path, allow_not_found=True))
        files = [info.path for info in infos if info.type == FileType.File and not info.path.endswith(_PENDING)]
        self._ids = None
        if files:
            written = pads.dataset(files, filesystem=filesystem, format="parquet").to_table(columns=[self._column])
            self._ids = ray.put(written.column(self._column).combine_chunks()) if written.num_rows else None

    def __call__(self, table: pa.Table) -> pa.Table:
        if table.schema.get_field_index(self._column) < 0:
            columns = ", ".join(table.column_names)
            raise ConfigError(f"checkpoint: the input has no column `{self._column}`; it has {columns}.")
        if self._ids is None or not table.num_rows:
            return table
        ids = ray.get(self._ids)
        values = table.column(self._column).cast(ids.type)
        return table.filter(pc.invert(pc.is_in(values, value_set=ids)))


class _Cleanup(IdColumnCheckpointManager):  # type: ignore[misc]  # Ray has no types
    """Removes the files of an interrupted write, and gives Ray Data nothing to filter."""

    def load_checkpoint(self, data_file_dir: str | None = None, data_file_filesystem: Any = None) -> tuple[None, int]:
        if data_file_dir is not None:
            self._clean_pending_checkpoints(data_file_dir, data_file_filesystem)
        return None, 0
