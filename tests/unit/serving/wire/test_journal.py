"""The journal of a stream: real sockets, real memfds, and writers that end at any byte."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayllm.core.token_log import TokenGroup, tokens_of
from rayllm.serving.wire.journal import (
    LARGEST_WRITE,
    JournalError,
    JournalFile,
    StreamJournal,
    accepted_bytes,
)

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
GROUPS = [TokenGroup((1, 2)), TokenGroup(()), TokenGroup((3,), "stop", 3), TokenGroup((4,), "length")]


@pytest.fixture
def file() -> Iterator[JournalFile]:
    created = JournalFile.create()
    yield created
    created.close()


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection: the server's end and the client's."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()) as client:
            server, _ = listening.accept()
            with server:
                yield server, client


def journal_of(file: JournalFile) -> StreamJournal:
    """The journal in another process."""
    return StreamJournal(os.dup(file.file), **file.description)


def write(journal: StreamJournal, server: socket.socket, bodies: list[bytes], sent_of_last: int | None = None) -> None:
    """Write as a replica does. Of the last write, only so many bytes reach the kernel."""
    journal.open(is_continuable=True)
    journal.begin(server)
    for number, body in enumerate(bodies):
        data = (HEAD if not number else b"") + body
        journal.before_write(data, body, is_last=False)
        is_last = number == len(bodies) - 1
        server.sendall(data[:sent_of_last] if is_last else data)


def test_tokens_come_back_in_their_groups(file: JournalFile) -> None:
    journal = journal_of(file)
    journal.open(is_continuable=True)
    for group in GROUPS:
        journal.append(group)
    assert journal_of(file).earlier == GROUPS
    assert tokens_of(GROUPS) == [1, 2, 3, 4]


def test_many_tokens_have_room(file: JournalFile) -> None:
    journal = journal_of(file)
    journal.open(is_continuable=True)
    groups = [TokenGroup((number, 1 << 30)) for number in range(50_000)]
    for group in groups:
        journal.append(group)
    assert journal_of(file).earlier == groups


def test_without_memory_for_more_tokens_it_cannot_be_continued(file: JournalFile) -> None:
    script = f"""
import resource
from rayllm.core.token_log import TokenGroup
from rayllm.serving.wire.journal import StreamJournal
journal = StreamJournal({file.file}, **{file.description})
journal.open(is_continuable=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for _ in range(1000):
    journal.append(TokenGroup(tuple(range(100))))
assert not journal.is_continuable
"""
    subprocess.run([sys.executable, "-c", script], check=True, pass_fds=[file.file])
    assert not file.is_continuable


def test_what_is_repeated_is_not_recorded_twice(file: JournalFile) -> None:
    first = journal_of(file)
    first.open(is_continuable=True)
    for group in GROUPS[:2]:
        first.append(group)
    second = journal_of(file)
    second.open(is_continuable=True)
    for group in GROUPS:
        second.append(group)
    assert journal_of(file).earlier == GROUPS


@pytest.mark.parametrize("opened", [[False], [True, True]], ids=["not reproducible", "several sequences"])
def test_what_cannot_be_continued(file: JournalFile, opened: list[bool]) -> None:
    assert not file.is_continuable
    journal = journal_of(file)
    for is_continuable in opened:
        journal.open(is_continuable)
    journal.append(TokenGroup((1,)))
    assert not file.is_continuable
    assert not journal_of(file).is_continuable


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=8), st.data())
def test_a_reply_goes_on_where_the_kernel_has_got_to(bodies: list[bytes], data: st.DataObject) -> None:
    """Wherever the first writer ends, the client receives each byte once."""
    written = data.draw(st.integers(1, len(bodies)), "writes")
    size = len(bodies[written - 1]) + (len(HEAD) if written == 1 else 0)
    sent = data.draw(st.integers(0, size), "bytes of the last write that were sent")
    file = JournalFile.create()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()) as client:
            server, _ = listening.accept()
            with server:
                server.sendall(b"an earlier reply")
                write(journal_of(file), server, bodies[:written], sent)
                second = journal_of(file)
                assert second.has_begun
                second.open(is_continuable=True)
                rest = second.rest(server)
                server.sendall(rest)
                # The second writer's parts are others.
                whole = b"".join(bodies)
                for start in range(0, len(whole), 7):
                    part = whole[start : start + 7]
                    if unsent := second.unsent(part, is_last=start + 7 >= len(whole)):
                        second.before_write(unsent, unsent, is_last=False)
                        server.sendall(unsent)
            received = b""
            while piece := client.recv(1 << 16):
                received += piece
    assert received == b"an earlier reply" + HEAD + whole
    file.close()


def test_a_second_writer_may_be_lost_as_well(
    file: JournalFile, connection: tuple[socket.socket, socket.socket]
) -> None:
    server, _ = connection
    write(journal_of(file), server, [b"one", b"two"], sent_of_last=1)
    second = journal_of(file)
    second.open(is_continuable=True)
    server.sendall(second.rest(server))
    unsent = second.unsent(b"onetwothree", is_last=False)
    second.before_write(unsent, unsent, is_last=False)
    server.sendall(unsent[:2])
    third = journal_of(file)
    assert third.rest(server) == b"ree"
    assert third.unsent(b"onetwothreefour", is_last=True) == b"four"


@pytest.mark.parametrize(
    ("body", "message"), [(b"onetwx", "differs"), (b"one", "shorter")], ids=["other bytes", "too short"]
)
def test_a_reply_that_differs_is_not_continued(
    file: JournalFile, connection: tuple[socket.socket, socket.socket], body: bytes, message: str
) -> None:
    server, _ = connection
    write(journal_of(file), server, [b"one", b"two"])
    second = journal_of(file)
    assert second.rest(server) == b""
    with pytest.raises(JournalError, match=message):
        second.unsent(body, is_last=True)


def test_bytes_of_somebody_else_are_noticed(file: JournalFile, connection: tuple[socket.socket, socket.socket]) -> None:
    server, _ = connection
    write(journal_of(file), server, [b"one"])
    server.sendall(b"not in the journal")
    with pytest.raises(JournalError, match="the client's connection took 40 of the last 22 bytes"):
        journal_of(file).rest(server)


def test_the_last_write_is_known(file: JournalFile, connection: tuple[socket.socket, socket.socket]) -> None:
    server, _ = connection
    journal = journal_of(file)
    write(journal, server, [b"one"])
    assert not journal_of(file).is_complete
    journal.before_write(b"end", b"", is_last=True)
    ended = journal_of(file)
    assert ended.is_complete
    assert ended.rest(server) == b"end"


def test_a_write_is_bounded(file: JournalFile, connection: tuple[socket.socket, socket.socket]) -> None:
    journal = journal_of(file)
    journal.open(is_continuable=True)
    journal.before_write(bytes(LARGEST_WRITE + 1000), b"", is_last=False)
    with pytest.raises(JournalError, match="too large"):
        journal.before_write(bytes(4 * LARGEST_WRITE), b"", is_last=False)


def test_the_kernel_counts_what_a_client_does_not_read(connection: tuple[socket.socket, socket.socket]) -> None:
    server, client = connection
    server.setblocking(False)
    before, sent = accepted_bytes(server), 0
    with suppress(BlockingIOError):
        while True:
            sent += server.send(bytes(100_000))
    assert accepted_bytes(server) - before == sent
    client.recv(50_000)
    assert accepted_bytes(server) - before == sent
