"""A file of requests in OpenAI's form, from its check to the files of answers and errors.

What is answered is kept in parts in the job's folder. A job that was broken off goes on with what is missing there.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ExecutionResources
from ray.data.exceptions import UserCodeException
from ray.exceptions import RayError

from rayllm.batch.config import Checkpoint, RequestProcessorConfig, pool
from rayllm.batch.execution.callback import StoppedError, stop
from rayllm.batch.files.datasource import LineSource, open_lines
from rayllm.batch.files.jsonl import Fault, Line, answer, check, read
from rayllm.batch.processors.request import STAGE, RequestProcessor
from rayllm.batch.rows import ERROR
from rayllm.config import ModelConfig
from rayllm.errors import ClusterError, ConfigError, RayLLMError, StorageError
from rayllm.storage import Folder, open_folder

logger = logging.getLogger(__name__)

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
_PARTS, _NOTES = "parts", "written"
_PERIOD_S = 1.0
# For the tasks that read, check and write, beside those who answer.
_CPUS_BESIDE = 2
_PARTS_OPEN = 16

Executor = RequestProcessorConfig


@dataclass
class Counts:
    """Requests of a job: all, those that were answered, and those that failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0


def deployed(app_name: str, concurrency: int) -> Executor:
    """Have the models of a running application answer, so many requests at once."""
    return RequestProcessorConfig(app_name=app_name, max_pending_requests=concurrency, show_progress=False)


def engines(model: ModelConfig, concurrency: int) -> Executor:
    """Have an engine of the job's own answer, so many requests at once."""
    return RequestProcessorConfig(model=model, max_pending_requests=concurrency, show_progress=False)


class Job:
    """One file of requests.

    Args:
        lines: the file: a path, `s3://…` or `gs://…`.
        folder: where the job keeps what it has done; so are its results. It stays over restarts.
        executor: who answers.
        endpoint: the path that all requests are for; None lets each have its own.
        max_requests: requests that there may be; None is any number.
    """

    def __init__(
        self, lines: str, folder: str, executor: Executor, endpoint: str | None = None, max_requests: int | None = None
    ) -> None:
        self._lines = lines
        self._folder = Folder(folder)
        self._endpoint = endpoint
        self._max_requests = max_requests
        notes = Checkpoint(path=self._folder.address(_NOTES), id_column="custom_id", delete_on_success=False)
        # A request that fails is an answer too: it goes into the file of errors.
        config = executor.model_copy(update={"checkpoint": notes, "on_error": "column"})
        self._processor = RequestProcessor(config, preprocess_fn=_request, postprocess_fn=_result)
        self._kept = _Kept(self._folder)
        self._is_over = threading.Event()
        self.counts = Counts()

    def validate(self) -> list[Fault]:
        """What is wrong with the file; empty where it is sound. Sets `counts.total`.

        Raises:
            ConfigError: there is no such file.
        """
        with self._open() as lines:
            self.counts.total, faults = check(lines, self._endpoint, self._max_requests)
        return faults

    def run(self, on_progress: Callable[[Counts], None] = lambda counts: None) -> None:
        """Answer what is not answered yet; returns when all is, or after `stop`.

        Args:
            on_progress: told about once a second, from another thread, how far the job is.

        Raises:
            RayLLMError: it cannot be run, or broke off.
        """
        telling = threading.Thread(target=self._tell, args=(on_progress,), daemon=True)
        try:
            dataset = self._processor(ray.data.read_datasource(LineSource(self._lines, _parse)))
            # Whoever runs the job tells how far it is.
            dataset.context.enable_progress_bars = False
            dataset.context.execution_options.resource_limits = ExecutionResources(cpu=self._cpus())
            telling.start()
            filesystem, path = open_folder(self._folder.address(_PARTS))
            dataset.drop_columns(["url", "body"]).write_parquet(path, filesystem=filesystem)
        except StoppedError:
            pass
        except (RayError, UserCodeException) as error:
            raise _cause(error) from error
        finally:
            self._is_over.set()

    def stop(self) -> None:
        """Have `run` return soon. What is answered by then stays."""
        stop(self._processor.execution)

    def finish(self, unfinished: Fault | None = None) -> Counts:
        """Write the files of answers and of errors, in the order of the requests, from what is done.

        Args:
            unfinished: why requests without an answer have none; they get an error with it. None leaves them out.
        """
        parts = _Parts(self._folder)
        counts = Counts(self.counts.total)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            for line in self._requests():
                told, has_failed = parts.answer(line, unfinished)
                (errors if has_failed else output).write(told)
                counts.failed += bool(told) and has_failed
                counts.completed += bool(told) and not has_failed
            for name, file in ((OUTPUT, output), (ERRORS, errors)):
                if file.tell():
                    file.seek(0)
                    self._folder.write(name, file)
        return counts

    def _open(self) -> Any:
        try:
            return open_lines(self._lines)
        except OSError as error:
            raise ConfigError(f"{self._lines}: cannot be read: {error.strerror or error}.") from None

    def _requests(self) -> Iterator[Line]:
        with self._open() as lines:
            yield from (line for line in read(lines) if isinstance(line, Line))

    def _cpus(self) -> float:
        """CPUs that the job may take at once: reading and writing lines is little work, and others have some too."""
        options = self._processor.get_stage_by_name(STAGE).map_kwargs
        return float(pool(options["concurrency"])[1] * options.get("num_cpus", 0) + _CPUS_BESIDE)

    def _tell(self, on_progress: Callable[[Counts], None]) -> None:
        while not self._is_over.wait(_PERIOD_S):
            try:
                on_progress(self.progress())
            except (StorageError, OSError) as error:
                logger.warning("Nobody knows how far the job is: %s", error)

    def progress(self) -> Counts:
        """How many requests have an answer that is kept, whoever runs the job; what is answered may still be lost."""
        self._kept.look()
        self.counts.completed, self.counts.failed = self._kept.completed, self._kept.failed
        return self.counts


class _Kept:
    """How many answers the parts of a job have.

    Args:
        folder: the job's.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._seen: set[str] = set()
        self.completed = 0
        self.failed = 0

    def look(self) -> None:
        """Count the parts that are new."""
        for name in set(self._folder.names(_PARTS)) - self._seen:
            try:
                table = _read_part(self._folder, name, ["status_code", ERROR])
            except (pa.ArrowInvalid, FileNotFoundError):
                # It is being written, or was taken away with what broke off.
                continue
            failed = sum(_has_failed(row) for row in table.to_pylist())
            self._seen.add(name)
            self.failed += failed
            self.completed += table.num_rows - failed


class _Parts:
    """The answers that a job has, by the numbers of their lines.

    Args:
        folder: the job's.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._names = folder.names(_PARTS)
        self._places: dict[int, tuple[str, int]] = {}
        for name in self._names:
            # What broke off in the middle of a part left it half written.
            with suppress(pa.ArrowInvalid, FileNotFoundError):
                for index, number in enumerate(_read_part(folder, name, ["line"]).column("line").to_pylist()):
                    self._places[number] = (name, index)
        # Answers come about in the order of their requests: a few parts at a time are enough.
        self._part = lru_cache(_PARTS_OPEN)(lambda name: _read_part(folder, name))

    def answer(self, line: Line, unfinished: Fault | None) -> tuple[bytes, bool]:
        """The line of the output or error file for a request, and whether it failed; empty where there is none."""
        if line.number not in self._places:
            return (answer(line.custom_id, None, None, unfinished) if unfinished else b""), True
        name, index = self._places[line.number]
        row = self._part(name).slice(index, 1).to_pylist()[0]
        if row[ERROR] is not None:
            return answer(line.custom_id, None, None, Fault("request_failed", row[ERROR])), True
        told = answer(line.custom_id, row["status_code"], json.loads(row["response"]), None)
        return told, _has_failed(row)


def _read_part(folder: Folder, name: str, columns: list[str] | None = None) -> pa.Table:
    with folder.open(f"{_PARTS}/{name}") as file:
        return pq.read_table(pa.BufferReader(file.read()), columns=columns)


def _parse(lines: list[bytes], first: int) -> list[dict[str, Any]]:
    """Rows of the requests in some lines of a file that was checked."""
    found = [line for line in read(lines) if isinstance(line, Line)]
    return [
        {
            "custom_id": line.custom_id,
            "line": line.number + first - 1,
            "url": line.url,
            "body": json.dumps(line.body),
        }
        for line in found
    ]


def _request(row: dict[str, Any]) -> dict[str, Any]:
    return {"url": row["url"], "body": json.loads(row["body"])}


def _result(row: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": row["status_code"], "response": json.dumps(row["response"])}


def _has_failed(row: dict[str, Any]) -> bool:
    return row[ERROR] is not None or row["status_code"] >= 400


def _cause(error: BaseException) -> RayLLMError:
    """What is at the bottom of an error of Ray's, as ours."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, RayLLMError):
            return found
        cause = getattr(found, "cause", None)
        found = cause if isinstance(cause, BaseException) else found.__cause__
    return ClusterError(f"the job broke off: {' '.join(str(error).split())[:1000]}")
