"""Frames of JSON and raw bytes: limits, descriptors, junk."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym.engine.rankside import confine
from pkb_gym.engine.wire.frames import HEADER, MAX_FDS, MAX_HEAD_BYTES, SO_PASSRIGHTS, Wire, pair
from pkb_gym.engine.wire.messages import ProtocolError, WireError, WireMessage
from tests.engine.forked import in_child
from tests.whole_tables import examples


@dataclass(frozen=True)
class Note(WireMessage):
    values: tuple[object, ...] = ()


@dataclass(frozen=True)
class Other(WireMessage):
    pass


NOTE = Note((1,))
TEXT = b'{"message":"Note","values":[1]}'
"""Of `NOTE`, as it travels."""


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    left, right = pair()
    for wire in (left, right):
        wire.sock.settimeout(5)
    yield left, right
    left.close()
    right.close()


def raw(text: bytes, body: bytes = b"") -> bytes:
    return HEADER.pack(len(text), len(body)) + text + body


def test_frames_arrive_in_order_with_their_bytes(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    left.send(Note((1, 2.5, None, True, "\u00e9\ud800")), raw=b"\0\1")
    left.send(Other())
    assert right.receive(Note, Other) == (Note((1, 2.5, None, True, "\u00e9\ud800")), b"\0\1")
    assert right.receive(Note, Other) == (Other(), b"")
    assert right.take(Note, Other) is None


def test_large_frames_pass_through_small_buffers(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    body = os.urandom(3 << 20)
    sender = threading.Thread(target=left.send, args=(NOTE,), kwargs={"raw": body})
    sender.start()
    assert right.receive(Note) == (NOTE, body)
    sender.join()


def test_frames_may_come_byte_by_byte(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    for byte in raw(TEXT, b"xy"):
        assert right.take(Note) is None
        left.sock.sendall(bytes([byte]))
        right.fill()
    assert right.take(Note) == (NOTE, b"xy")


def test_descriptors_travel_with_the_frame(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    reading, writing = os.pipe()
    left.send(NOTE, fds=[writing, reading])
    message, _, fds = right.receive_with_fds(Note)
    assert message == NOTE
    os.write(fds[0], b"through the pipe")
    assert os.read(reading, 100) == b"through the pipe"
    for fd in (reading, writing, *fds):
        os.close(fd)


def test_descriptors_that_nobody_asked_for_are_dropped(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        left.send(NOTE, fds=[left.fileno()] * MAX_FDS)
        right.receive(Note)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff" * 8, "at most"),
        (HEADER.pack(2, 0xFFFFFFF0) + b"{}", "at most"),
        (HEADER.pack(MAX_HEAD_BYTES + 1, 0), "of JSON announced"),
        (raw(b"hello"), "no JSON"),
        (raw(b"[1]"), "no JSON object"),
        (raw(b"null"), "no JSON object"),
        (raw(b""), "no JSON"),
        (raw(b"\xff\xfe"), "no JSON"),
        (raw(b"[" * 100_000), "no JSON"),
        (raw(b'{"n":' + b"9" * 10_000 + b"}"), "no JSON"),
        (raw(b"{}"), "None arrived where Note was due"),
        (raw(b'{"message":"Other"}'), "'Other' arrived where Note was due"),
        (raw(b'{"message":"Note"}'), "Note: values missing"),
        (raw(b'{"message":"Note","values":1}'), "Note.values: expected tuple, got 1"),
    ],
)
def test_junk_is_a_protocol_error(ends: tuple[Wire, Wire], data: bytes, words: str) -> None:
    left, right = ends
    left.sock.sendall(data)
    with pytest.raises(ProtocolError, match=words):
        right.receive(Note)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_an_error(data: bytes) -> None:
    left, right = pair()
    try:
        left.sock.sendall(data)
        left.sock.shutdown(socket.SHUT_WR)
        message, _ = right.receive(Note)
        assert isinstance(message, Note)
    except WireError:
        pass
    finally:
        left.close()
        right.close()


def test_descriptors_that_there_is_no_room_for_are_an_error(ends: tuple[Wire, Wire]) -> None:
    """The kernel drops them, and the receiver took the first of none."""
    left, right = ends
    before = sorted(os.listdir("/proc/self/fd"))
    taken = [os.dup(0) for _ in range(8)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    left.send(NOTE, fds=[left.fileno()] * 4)
    os.close(taken.pop())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
        with pytest.raises(WireError, match="too many files are open here"):
            right.receive_with_fds(Note)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert sorted(os.listdir("/proc/self/fd")) == before


FRAMES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        raw,
        st.one_of(
            st.binary(max_size=40),
            st.dictionaries(st.sampled_from(["message", "values", "other"]), st.one_of(st.text(max_size=5), st.none()))
            .map(json.dumps)
            .map(str.encode),
            st.just(TEXT),
        ),
        st.binary(max_size=20),
    ),
)


@settings(max_examples=examples(50))
@given(frames=st.lists(st.tuples(FRAMES, st.integers(0, 3)), min_size=1, max_size=4), cut=st.integers(0, 3))
def test_any_frames_with_any_descriptors_leave_none_open(frames: list[tuple[bytes, int]], cut: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    left, right = pair()
    try:
        for data, fds in frames:
            data = data[: len(data) - cut]
            if data:
                socket.send_fds(left.sock, [data], [0] * fds)
        left.sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(WireError):
            while True:
                message, _, received = right.receive_with_fds(Note, Other)
                assert isinstance(message, Note | Other)
                for fd in received:
                    os.close(fd)
    finally:
        left.close()
        right.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_nobody_takes_does_not_pile_up() -> None:
    left, right = pair()
    right.max_frame_bytes = 1000
    left.sock.setblocking(False)
    with pytest.raises(ProtocolError, match="nobody waits for"):
        for _ in range(10_000):
            try:
                left.sock.send(raw(TEXT) * 10)
            except BlockingIOError:
                pass
            right.fill()
    assert len(right._buffer) < 200_000
    left.close()
    right.close()


def test_a_frame_too_large_is_not_sent(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    left.max_frame_bytes = 100
    with pytest.raises(WireError, match=f"frame of {len(TEXT) + 101} bytes; at most 100"):
        left.send(NOTE, raw=bytes(101))
    left.send(NOTE)
    assert right.receive(Note) == (NOTE, b"")


def test_infinity_is_not_sent(ends: tuple[Wire, Wire]) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        ends[0].send(Note((float("inf"),)))


def test_a_closed_end_is_an_error_on_the_other(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    left.sock.sendall(struct.pack("!I", 5))  # half a header
    left.close()
    with pytest.raises(WireError, match="closed the connection"):
        right.receive(Note)
    with pytest.raises(WireError, match="gone"):
        for _ in range(3):
            right.send(NOTE)


def test_pending_sees_what_nobody_took(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    assert not right.pending()
    left.send(NOTE)
    assert right.pending()
    right.receive(Note)
    assert not right.pending()
    left.close()
    assert not right.pending()  # an end is no message


def test_descriptors_wait_while_too_many_are_under_way(ends: tuple[Wire, Wire]) -> None:
    """Candidates of the same user kept as many under way as `ulimit -n`: evaluations beside them failed at once."""
    in_child(lambda: _send_beside_many(*ends))


def _send_beside_many(left: Wire, right: Wire) -> None:
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    confine.drop_capabilities()  # root may have as many under way as it likes
    sink, source = socket.socketpair()
    with contextlib.suppress(OSError):
        for _ in range(limit):
            socket.send_fds(source, [b"x"], [0] * 16)
    with pytest.raises(OSError, match="Too many references"):
        socket.send_fds(source, [b"x"], [0])
    release = threading.Timer(0.1, sink.close)
    release.start()
    left.send(NOTE, fds=[0])
    release.join()
    message, _, fds = right.receive_with_fds(Note)
    assert message == NOTE and len(fds) == 1


def test_descriptors_that_nobody_asked_for_are_refused(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    right.refuse_descriptors()
    if not _knows_passrights(right.sock):
        pytest.skip("Linux before 6.16")
    with pytest.raises(WireError, match="Operation not permitted"):
        left.send(NOTE, fds=[0])
    left.send(NOTE)
    assert right.receive(Note)[0] == NOTE
    right.send(NOTE, fds=[0])  # the other way goes on as before
    assert len(left.receive_with_fds(Note)[2]) == 1


def _knows_passrights(sock: socket.socket) -> bool:
    try:
        sock.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS)
    except OSError:
        return False
    return True
