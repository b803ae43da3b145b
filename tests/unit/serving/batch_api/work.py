"""Fakes: a job without an engine, and runners without a cluster."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, BinaryIO

from rayllm.batch.files.jsonl import Counts, Fault
from rayllm.serving.batch_api.execution.lifecycle import BatchLifecycle
from rayllm.serving.batch_api.objects import Batch
from rayllm.serving.batch_api.storage.stores import Stores
from rayllm.sources.storage import Folder


class KilledError(BaseException):
    """Simulates the death of the process."""


class Life:
    """A process that dies at its `steps`-th step, or while it works on a deadly batch."""

    def __init__(self, steps: float = float("inf")) -> None:
        self.left = steps

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KilledError


class MortalFolder(Folder):
    """A folder whose writer may die before each change."""

    def __init__(self, uri: str, life: Life) -> None:
        super().__init__(uri)
        self._life = life

    def write(self, path: str, content: bytes | BinaryIO) -> None:
        self._life.step()
        super().write(path, content)

    def delete(self, path: str) -> None:
        self._life.step()
        super().delete(path)

    def delete_folder(self, path: str) -> None:
        self._life.step()
        super().delete_folder(path)


class Job:
    """Answers each line with its text in capitals; `{"fail": …}` fails, and anything but JSON is a fault.

    Args:
        lines: of the input.
        folder: keeps what is answered.
        life: of the process.
        pause: the job waits for it before each answer.
        stopped: set when the job is stopped.
    """

    def __init__(
        self, lines: list[str], folder: Folder, life: Life, pause: Callable[[], None], stopped: threading.Event
    ) -> None:
        self._lines = lines
        self._folder = folder
        self._life = life
        self._pause = pause
        self._stopped = stopped
        self._is_stopped = False
        self.counts = Counts()
        self.error: Exception | None = None

    def validate(self) -> list[Fault]:
        self._life.step()
        self.counts.total = len(self._lines)
        return [Fault("invalid_json_line", "No JSON.", n) for n, line in enumerate(self._lines, 1) if line[:1] != "{"]

    def run(self, on_progress: Callable[[Counts], None]) -> None:
        for number, line in enumerate(self._lines):
            if self._is_stopped:
                return
            if self._folder.size(f"done/{number}") is None:
                self._pause()
                if self._is_stopped:
                    return
                self._life.step()
                self._folder.write(f"done/{number}", line.upper().encode())
            on_progress(Counts(len(self._lines), number + 1, 0))
            if self.error:
                raise self.error

    def stop(self) -> None:
        self._is_stopped = True
        self._stopped.set()

    def finish(self, unfinished: Any = None) -> Counts:
        self._life.step()
        counts, output, errors = Counts(len(self._lines)), [], []
        for number, line in enumerate(self._lines):
            if self._folder.size(f"done/{number}") is None:
                if unfinished:
                    errors.append(json.dumps({"line": number + 1, "error": unfinished.code}))
            elif "fail" in line:
                errors.append(line.upper())
            else:
                output.append(line.upper())
        counts.completed, counts.failed = len(output), len(errors)
        for name, lines in (("output.jsonl", output), ("errors.jsonl", errors)):
            if lines:
                self._folder.write(name, BytesIO("".join(f"{line}\n" for line in lines).encode()))
        return counts


@dataclass
class Runners:
    """Fakes of actors: threads, at most one per batch."""

    stores: Stores
    life: Life = field(default_factory=Life)
    deadly: set[str] = field(default_factory=set)
    pause: Callable[[], None] = lambda: None
    stopped: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    started: list[str] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, batch_id: str) -> None:
        """As `start_runner`."""

        def work() -> None:
            with suppress(KilledError):
                self.run(batch_id)

        with self.lock:
            if batch_id not in self.threads or not self.threads[batch_id].is_alive():
                self.started.append(batch_id)
                self.threads[batch_id] = threading.Thread(target=work, daemon=True)
                self.threads[batch_id].start()

    def run(self, batch_id: str) -> None:
        """As a runner does; here and now."""
        files, batches = self.stores
        batch = batches.get(batch_id)
        if not batch.has_ended:
            BatchLifecycle(batch, batches, files, self._job, batches.begin(batch)).run()
        batches.close(batch)

    def _job(self, batch: Batch) -> Any:
        if batch.id in self.deadly:
            self.deaths[batch.id] += 1
            raise KilledError
        with self.stores.files.open(batch.input_file_id) as content:
            lines = content.read().decode().splitlines()
        job = Job(lines, self.stores.batches.job_folder(batch.id), self.life, self.pause, self.stopped)
        job.error = self.error
        return job
