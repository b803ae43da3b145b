"""Run a JSONL file of OpenAI-style requests, from validation to the output and error files.

Results are written in parts to the job's folder. An interrupted job resumes with the requests without a result.
"""

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import ray
from ray.data import ExecutionResources
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.exceptions import UserCodeException
from ray.exceptions import RayError

from rayllm.batch.config import Checkpoint, RequestProcessorConfig, pool_size
from rayllm.batch.execution.callback import StoppedError, stop
from rayllm.batch.files.jsonl import LONGEST_LINE, Counts, Fault, Line, bounded, check, read
from rayllm.batch.files.results import PARTS, answered, count_results, write_part, write_results
from rayllm.batch.processors.kinds import DEFAULT_MAX_PENDING, REQUEST_STAGE, RequestProcessor
from rayllm.batch.stages.request import DeployedRequestStage
from rayllm.core.errors import ClusterError, ConfigError, RayLLMError, StorageError
from rayllm.core.periodic import repeated
from rayllm.sources.storage import Folder, open_folder

logger = logging.getLogger(__name__)

_CHECKPOINTS = "written"
_PERIOD_S = 1.0
# Requests up to which a job runs in this process: Ray Data's workers take as long to start as some hundred answers.
_FEW = 200
# CPUs for the tasks that read, check and write, beside the workers.
_EXTRA_CPUS = 2
# Most lines and bytes of a piece that a task reads; rows are several times larger than their lines.
_PIECE_LINES, _PIECE_BYTES = 512, 64 * 1024 * 1024


@dataclass(eq=False)
class Job:
    """One file of requests.

    Args:
        lines: the file: a path, `s3://…` or `gs://…`.
        folder: folder for the job's state and results, which survives restarts.
        endpoint: path that all requests must be for; None allows any.
        max_requests: most requests; None is no limit.
        longest_line: most bytes of a request.
    """

    lines: str
    folder: str
    executor: RequestProcessorConfig
    endpoint: str | None = None
    max_requests: int | None = None
    longest_line: int = LONGEST_LINE

    def __post_init__(self) -> None:
        self._folder = Folder(self.folder)
        path = self._folder.address(_CHECKPOINTS)
        checkpoint = Checkpoint(path=path, id_column="custom_id", delete_on_success=False)
        # A failed request is a result too: it goes into the error file.
        config = self.executor.model_copy(update={"checkpoint": checkpoint, "on_error": "column"})
        self._processor = RequestProcessor(config, preprocess_fn=_request)
        self._is_stopped = threading.Event()
        self.counts = Counts()
        self._counted: set[str] = set()

    def validate(self) -> list[Fault]:
        """Check the file and set `counts.total`; returns the faults. Raises ConfigError if the file cannot be read."""
        with self._open() as lines:
            bounded_lines = bounded(lines, self.longest_line)
            self.counts.total, faults = check(bounded_lines, self.endpoint, self.max_requests, self.longest_line)
        return faults

    def run(self, on_progress: Callable[[Counts], None] = lambda counts: None) -> None:
        """Process the requests without a result; returns when all are done, or after `stop`.

        Args:
            on_progress: called with the counts about once per second, from another thread.

        Raises:
            RayLLMError: the job cannot run, or was interrupted.
        """
        if self.executor.app_name is not None and self.counts.total <= _FEW:
            self._run_here(self.executor.app_name, on_progress)
            return
        try:
            dataset = self._processor(ray.data.read_datasource(_Requests(self.lines)))
            # The caller reports progress.
            dataset.context.enable_progress_bars = False
            dataset.context.execution_options.resource_limits = ExecutionResources(cpu=self._cpu_limit())
            with repeated(partial(self._report, on_progress), _PERIOD_S):
                filesystem, path = open_folder(self._folder.address(PARTS))
                dataset.drop_columns(["url", "body"]).write_parquet(path, filesystem=filesystem)
        except StoppedError:
            pass
        except (RayError, UserCodeException) as error:
            raise _root_cause(error) from error

    def stop(self) -> None:
        """Make `run` return soon, and keep the results so far."""
        self._is_stopped.set()
        stop(self._processor.execution_id)

    def finish(self, unfinished: Fault | None = None) -> Counts:
        """Write the output and error files, as `write_results`; returns the counts."""
        counts = write_results(self._folder, self._requests(), unfinished)
        counts.total = self.counts.total
        return counts

    def progress(self) -> Counts:
        """Count the results written so far by any process; an interrupted write may still take some back."""
        count_results(self._folder, self.counts, self._counted)
        return self.counts

    def _run_here(self, app_name: str, on_progress: Callable[[Counts], None]) -> None:
        pending = self.executor.max_pending_requests or DEFAULT_MAX_PENDING
        stage = DeployedRequestStage(app_name, pending, self.executor.caller)
        done = answered(self._folder)
        requests = {
            stage.start({"url": line.url, "body": line.body}): {"custom_id": line.custom_id, "line": line.number}
            for line in self._requests()
            if line.number not in done
        }
        waiting = set(requests)
        try:
            while waiting and not self._is_stopped.is_set():
                finished, waiting = wait(waiting, timeout=_PERIOD_S)
                if finished:
                    write_part(self._folder, [{**requests[each], **each.result()} for each in finished])
                    on_progress(self.progress())
        finally:
            for each in waiting:
                each.cancel()

    def _open(self) -> BinaryIO:
        try:
            return _open_lines(self.lines)
        except OSError as error:
            raise ConfigError(f"{self.lines}: cannot be read: {error.strerror or error}.") from None

    def _requests(self) -> Iterator[Line]:
        with self._open() as lines:
            yield from (line for line in read(lines) if isinstance(line, Line))

    def _cpu_limit(self) -> float:
        """CPUs of the whole job, which leaves the rest of the cluster to other applications."""
        options = self._processor.get_stage_by_name(REQUEST_STAGE).map_kwargs
        return float(pool_size(options["concurrency"])[1] * options.get("num_cpus", 0) + _EXTRA_CPUS)

    def _report(self, on_progress: Callable[[Counts], None]) -> None:
        try:
            on_progress(self.progress())
        except (StorageError, OSError) as error:
            logger.warning("The job's progress cannot be read: %s", error)


def _rows(lines: list[bytes], first: int) -> list[dict[str, Any]]:
    """Dataset rows for consecutive lines of a validated file, beginning at line number `first`."""
    return [
        {"custom_id": line.custom_id, "line": line.number + first - 1, "url": line.url, "body": json.dumps(line.body)}
        for line in read(lines)
        if isinstance(line, Line)
    ]


def _request(row: dict[str, Any]) -> dict[str, Any]:
    return {"url": row["url"], "body": json.loads(row["body"])}


def _root_cause(error: BaseException) -> RayLLMError:
    """RayLLM's own error beneath an error of Ray's, if any."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, RayLLMError):
            return current
        cause = getattr(current, "cause", None)
        current = cause if isinstance(cause, BaseException) else current.__cause__
    return ClusterError(f"the job was interrupted: {' '.join(str(error).split())[:1000]}")


def _open_lines(address: str) -> BinaryIO:
    filesystem, path = open_folder(address)
    return io.BufferedReader(filesystem.open_input_file(path), 2**20)


class _Requests(Datasource):  # type: ignore[misc]  # Ray has no types
    """The requests of a validated file, which Ray Data's tasks read in pieces."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._pieces = list(_pieces(address))

    def estimate_inmemory_data_size(self) -> int:
        return sum(size for _, size, _ in self._pieces)

    def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
        return [
            ReadTask(partial(_read, self._address, *piece), BlockMetadata(None, piece[1], [self._address], None))
            for piece in self._pieces
        ]


def _read(address: str, start: int, size: int, first: int) -> list[pa.Table]:
    filesystem, path = open_folder(address)
    with filesystem.open_input_file(path) as file:
        file.seek(start)
        return [pa.Table.from_pylist(_rows(file.read(size).split(b"\n"), first))]


def _pieces(address: str) -> Iterator[tuple[int, int, int]]:
    """Offset and size of each piece in bytes, and the number of its first line."""
    start = size = first = 0
    with _open_lines(address) as lines:
        for number, line in enumerate(lines):
            if number - first == _PIECE_LINES or (size and size + len(line) > _PIECE_BYTES):
                yield start, size, first + 1
                start, size, first = start + size, 0, number
            size += len(line)
    if size:
        yield start, size, first + 1
