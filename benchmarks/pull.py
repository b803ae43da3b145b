"""Weights from S3 and Google Cloud Storage: our downloader beside the clouds' own clients, from one local server.

python -m benchmarks.pull                             print the table
python -m benchmarks.pull --write                     also put it into docs/performance.md
python -m benchmarks.pull --size-gb 0.1 --rounds 1    a small one

Everything lies in the folder for temporary files (`TMPDIR`); its disk needs room for twice the size.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.aws_cli import find_aws

# This process imports little on purpose: Linux counts the memory of the process that starts a client as the client's.

LAYOUTS = (64, 1)  # objects that hold the weights
_ROOT = Path(__file__).parent.parent
_STEP = 1024 * 1024
_CONFIG = "config.json"


@dataclass(frozen=True)
class Weights:
    """What is to be pulled: sizes by name, and the CRC-32 of the file that is looked into."""

    sizes: Mapping[str, int]
    sample: str
    crc32: int


@dataclass(frozen=True)
class Client:
    """A way to have the files of a bucket in a folder: `command` followed by the bucket's address and the folder.

    `check` raises where they are not there. Ratios are those of `beside` to this client.
    """

    name: str
    command: Sequence[str]
    bucket: str
    check: Callable[[Path, Weights], None]
    beside: str


@dataclass(frozen=True)
class Round:
    """One client's turn: seconds until the files can be used, CPU seconds, and the most memory in bytes."""

    wall_s: float
    cpu_s: float
    memory: float


MEASURES: Sequence[Callable[[Round], float]] = (lambda r: r.wall_s, lambda r: r.cpu_s, lambda r: r.memory / 1e6)


def make_weights(folder: Path, size: int, objects: int) -> Weights:
    """A model's folder: random weights of `size` bytes in so many files, and a small config.json."""
    (folder / _CONFIG).write_text('{"model_type": "benchmark"}\n')
    each = size // objects
    for number in range(1, objects + 1):
        with (folder / f"model-{number:05}-of-{objects:05}.safetensors").open("wb") as file:
            for at in range(0, each, _STEP):
                file.write(os.urandom(min(_STEP, each - at)))
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    sample = max(sizes)
    return Weights(sizes, sample, _crc32(folder / sample))


def has_files(folder: Path, weights: Weights) -> None:
    """Raise unless the folder holds every file at its size, and the sample as it is."""
    has_sizes(folder, weights)
    if _crc32(folder / weights.sample) != weights.crc32:
        raise RuntimeError(f"{folder / weights.sample} is damaged")


def has_sizes(folder: Path, weights: Weights) -> None:
    """Raise unless the folder holds every file at its size."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    if sizes != weights.sizes:
        raise RuntimeError(f"{folder} holds {sizes}")


def has_entry(folder: Path, weights: Weights) -> None:
    """Raise unless our cache in this folder holds the files."""
    (files,) = folder.glob("sources/*/*/files")
    has_files(files, weights)


def has_nothing(folder: Path, weights: Weights) -> None:
    """A client that keeps nothing: it says itself where the server sent something else."""


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(_STEP):
            crc = zlib.crc32(piece, crc)
    return crc


def clients() -> list[Client]:
    """All that is compared, in the order in which they take turns."""
    aws = find_aws()
    aws_version = subprocess.run([aws, "--version"], check=True, capture_output=True, text=True).stdout.split()[0]
    copy = (aws, "s3", "cp", "--recursive", "--only-show-errors")
    s3, gcs = "RayLLM, S3", "RayLLM, GCS"
    return [
        Client(s3, _own("rayllm"), "s3://weights", has_entry, s3),
        Client("RayLLM, S3 without CRC (MD5)", _own("rayllm"), "s3://no-crc", has_entry, s3),
        Client(f"`aws s3 cp --recursive` ({aws_version})", copy, "s3://weights", has_files, s3),
        Client(f"boto3 {version('boto3')}", _own("boto3"), "s3://weights", has_files, s3),
        Client(gcs, _own("rayllm"), "gs://weights", has_entry, gcs),
        Client(
            f"google-cloud-storage {version('google-cloud-storage')}", _own("google"), "gs://weights", has_files, gcs
        ),
        Client("only receiving, 8 threads", _own("receive"), "s3://weights", has_nothing, s3),
        Client("only writing, 8 threads", _own("write"), "s3://weights", has_sizes, s3),
    ]


def _own(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "benchmarks.pull_clients", name)


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """A server of the folder's files; the environment of its clients."""
    command = [sys.executable, "-m", "benchmarks.object_server", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as server:
        assert server.stdout
        try:
            if not (port := server.stdout.readline().strip()):
                raise RuntimeError("the server ended while it was starting")
            with tempfile.TemporaryDirectory(prefix="rayllm-pull-") as compiled:
                yield _environment(f"http://127.0.0.1:{port}", compiled)
        finally:
            server.kill()


def _environment(url: str, compiled: str) -> dict[str, str]:
    """Keys that nobody asks for, nothing of the user's configuration, and a folder for compiled modules.

    The turn that warms up fills it: else a client whose environment was installed uncompiled would compile itself anew
    in each turn.
    """
    theirs = ("AWS_", "RAYLLM_", "GOOGLE_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    nowhere = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_REGION": "us-east-1"}
    addresses = {
        "AWS_ENDPOINT_URL": url,
        "STORAGE_EMULATOR_HOST": url,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PYTHONPYCACHEPREFIX": compiled,
    }
    return kept | nowhere | keys | addresses


def turn(client: Client, weights: Weights, environment: Mapping[str, str]) -> Round:
    """One pull into an empty folder, in a fresh process, on a disk that has nothing else left to write."""
    with tempfile.TemporaryDirectory(prefix="rayllm-pull-") as folder, tempfile.TemporaryFile("w+") as errors:
        os.sync()
        _claim_memory(Path(folder), sum(weights.sizes.values()))
        began = time.perf_counter()
        command = [*client.command, client.bucket, folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=_ROOT)
        assert process.stdout
        # Ours says `done` while it still brings the files from memory to the disk; others do by ending.
        process.stdout.readline()
        wall_s = time.perf_counter() - began
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{client.name} failed: {errors.read()}")
        client.check(Path(folder), weights)
    return Round(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def _claim_memory(folder: Path, size: int) -> None:
    """Fill the memory that the files will take, and free it again.

    Some virtual machines give free memory back, and get it again slowly; the system would count that as the CPU time of
    the client whose turn it happens to be.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(0, size, _STEP):
            file.write(bytes(_STEP))


def compare(objects: int, size: int, rounds: int) -> list[str]:
    """Rows of the table for weights in so many objects."""
    with tempfile.TemporaryDirectory(prefix="rayllm-pull-") as folder:
        weights = make_weights(Path(folder), size, objects)
        with serving(Path(folder)) as environment:
            seen: dict[str, list[Round]] = {}
            measured = clients()
            for number in range(rounds + 1):
                for client in measured:
                    result = turn(client, weights, environment)
                    print(f"{objects} objects, {number or 'warm-up'}: {client.name}: {result}", file=sys.stderr)
                    if number:
                        seen.setdefault(client.name, []).append(result)
    return [_row(objects, client.name, seen[client.name], seen[client.beside]) for client in measured]


def _row(objects: int, name: str, theirs: Sequence[Round], ours: Sequence[Round]) -> str:
    """Medians, and median and range of the ratios of neighbouring rounds."""
    medians = [f"{statistics.median(map(value, theirs)):.3g}" for value in MEASURES]
    cells = [str(objects), name, *medians]
    for value in MEASURES:
        ratios = sorted(value(a) / value(b) for a, b in zip(ours, theirs, strict=True))
        cells.append("" if ours is theirs else f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-gb", type=float, default=2, help="bytes to pull, in 10⁹")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each client after the first, which warms up")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    table = [
        "| objects | client | wall, s | CPU, s | memory, MB | RayLLM / client: wall | CPU | memory |",
        "|--:|---|--:|--:|--:|---|---|---|",
    ]
    for objects in LAYOUTS:
        table += compare(objects, int(options.size_gb * 1e9), options.rounds)
    # Only now, because it imports much.
    from benchmarks.compare import publish

    publish("pull", "\n".join(table))


if __name__ == "__main__":
    main()
