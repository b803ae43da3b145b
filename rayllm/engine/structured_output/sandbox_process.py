"""The sandbox's process, which forks for each constraint and compiles the constraint in the fork.

A constraint that runs away, or crashes the compiler, only affects its fork. The process reads lines of JSON: first
`{"id", "tokenizer", "any_whitespace"}`, then `{"id", "kind", "spec"}`. It answers each line with `{"id", "fault"}`,
where fault is null or a phrase, or with `{"id", "busy"}` if the machine was too busy to compile the constraint in time.
"""

import json
import os
import re
import resource
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

CPU_S = 2
# Under load a process gets less than a core.
_WALL_S = 10
MEMORY_BYTES = 1 << 30
# Generation steps to try: some grammars compile at once and then take minutes for a token.
_STEPS = 16

_TOO_COSTLY = "takes too long or too much memory to compile; make it simpler"

_PLACE = re.compile(r"^(\[[^\]]*\] )?\S+\.(cc|h):\d+: (Check failed: \(.*?\) is false: )?")
# Errors that xgrammar reports as conditions of its own source, and what they mean.
_MEANINGS = {"per_rule_fsm_hashes": "a `pattern` repeats something more than 128 times; use at most `{0,128}`, or `*`"}


def main(connection: socket.socket) -> None:
    """Compile the jobs of the connection, and send the answers, until the connection is closed."""
    with suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle("rayllm::Sandbox")
    import xgrammar

    answers = connection.fileno()
    lines = _lines(answers)
    if (first_line := next(filter(None, lines), None)) is None:
        return
    first = json.loads(first_line)
    # The vocabulary, as xgrammar serializes it.
    info = xgrammar.TokenizerInfo.deserialize_json(first["tokenizer"])
    _answer(answers, first["id"], None)
    running: dict[int, int] = {}
    for line in lines:
        _reap(running, answers)
        if line:
            job = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _run(job, info, first["any_whitespace"], answers)
            running[pid] = job["id"]
    _reap(running, answers)


def _lines(jobs: int) -> Iterator[bytes]:
    """The lines of a descriptor, and an empty line after each idle tenth of a second, to notice forks that end."""
    buffer = b""
    while True:
        if not select.select([jobs], [], [], 0.1)[0]:
            yield b""
            continue
        read = os.read(jobs, 1 << 20)
        if not read:
            return
        buffer += read
        *whole, buffer = buffer.split(b"\n")
        yield from whole


def _reap(running: dict[int, int], answers: int) -> None:
    """Answer for forks that were killed or have crashed."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        job = running.pop(pid)
        if os.waitstatus_to_exitcode(status) == -signal.SIGALRM:
            # The limit of wall-clock time: the fork got too little of the processor.
            _write(answers, {"id": job, "busy": True})
        elif status != 0:
            _answer(answers, job, _TOO_COSTLY)


def _answer(answers: int, job: int, fault: str | None) -> None:
    _write(answers, {"id": job, "fault": fault and fault[:500]})


def _write(answers: int, answer: dict[str, Any]) -> None:
    # Short enough to be written atomically: lines of several forks do not mix.
    os.write(answers, json.dumps(answer).encode() + b"\n")


def _limit_process() -> None:
    """Limit this process's time and memory, on top of the memory that the process uses now."""
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(_WALL_S)


def _run(job: dict[str, Any], info: Any, any_whitespace: bool, answers: int) -> None:
    """Compile one constraint, in a fork; never returns."""
    _limit_process()
    try:
        compile_constraint(info, job["kind"], job["spec"], any_whitespace)
        fault = None
    except MemoryError:
        fault = _TOO_COSTLY
    except Exception as error:
        fault = f"cannot be compiled: {_first_line(error)}"
    _answer(answers, job["id"], fault)
    os._exit(0)


def _first_line(error: Exception) -> str:
    for sign, meaning in _MEANINGS.items():
        if sign in str(error):
            return meaning
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Messages begin with a location in the compiler's source.
    return _PLACE.sub("", lines[0] if lines else type(error).__name__).rstrip(".")


def compile_constraint(info: Any, kind: str, spec: str, any_whitespace: bool = True) -> None:
    """Compile as vLLM's engine does, and generate a few tokens; `info` is xgrammar's tokenizer information.

    Raises:
        RuntimeError: the constraint is invalid; the message is the compiler's.
    """
    import xgrammar

    # With the cache, as in the engine, xgrammar also hashes a grammar, and fails if it cannot.
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=True)
    if kind == "json":
        compiled = compiler.compile_json_schema(spec, any_whitespace=any_whitespace)
    elif kind == "regex":
        compiled = compiler.compile_regex(spec)
    elif kind == "grammar":
        if "::=" not in spec:
            raise ValueError("the grammar is in Lark, which some versions of xgrammar do not read; write it in EBNF")
        compiled = compiler.compile_grammar(spec)
    else:
        compiled = _structural_tag(compiler, json.loads(spec))
    matcher = xgrammar.GrammarMatcher(compiled)
    mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
    for _ in range(_STEPS):
        if matcher.is_terminated():
            return
        matcher.fill_next_token_bitmask(mask)
        words = mask[0].tolist()
        word = next((index for index, bits in enumerate(words) if bits), None)
        if word is None:
            raise ValueError("it leaves no token to generate")
        bits = words[word] & 0xFFFFFFFF
        matcher.accept_token(32 * word + (bits & -bits).bit_length() - 1)


def _structural_tag(compiler: Any, tag: dict[str, Any]) -> Any:
    import xgrammar

    if "structures" not in tag:
        return compiler.compile_structural_tag(json.dumps(tag))
    items = [
        xgrammar.StructuralTagItem(begin=item["begin"], schema=json.dumps(item["schema"]), end=item["end"])
        for item in tag["structures"]
    ]
    return compiler.compile_structural_tag(items, tag["triggers"])
