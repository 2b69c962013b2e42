"""Frames of JSON and raw bytes: limits, descriptors, junk."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pkb_gym.engine.rankside.wire import HEADER, MAX_FDS, MAX_HEAD_BYTES, ProtocolError, Wire, WireError, pair


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
    left.send({"a": [1, 2.5, None, True, "\u00e9\ud800"]}, raw=b"\0\1")
    left.send({})
    assert right.receive() == ({"a": [1, 2.5, None, True, "\u00e9\ud800"]}, b"\0\1")
    assert right.receive() == ({}, b"")
    assert right.take() is None


def test_large_frames_pass_through_small_buffers(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    body = os.urandom(3 << 20)
    sender = threading.Thread(target=left.send, args=({"n": 1},), kwargs={"raw": body})
    sender.start()
    assert right.receive() == ({"n": 1}, body)
    sender.join()


def test_frames_may_come_byte_by_byte(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    for byte in raw(b'{"a":1}', b"xy"):
        assert right.take() is None
        left.sock.sendall(bytes([byte]))
        right.fill()
    assert right.take() == ({"a": 1}, b"xy")


def test_descriptors_travel_with_the_frame(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    reading, writing = os.pipe()
    left.send({"take": "this"}, fds=[writing, reading])
    message, _, fds = right.receive_with_fds()
    assert message == {"take": "this"}
    os.write(fds[0], b"through the pipe")
    assert os.read(reading, 100) == b"through the pipe"
    for fd in (reading, writing, *fds):
        os.close(fd)


def test_descriptors_that_nobody_asked_for_are_dropped(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        left.send({"unasked": True}, fds=[left.fileno()] * MAX_FDS)
        right.receive()
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
    ],
)
def test_junk_is_a_protocol_error(ends: tuple[Wire, Wire], data: bytes, words: str) -> None:
    left, right = ends
    left.sock.sendall(data)
    with pytest.raises(ProtocolError, match=words):
        right.receive()


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_an_error(data: bytes) -> None:
    left, right = pair()
    try:
        left.sock.sendall(data)
        left.sock.shutdown(socket.SHUT_WR)
        message, _ = right.receive()
        assert isinstance(message, dict)
    except WireError:
        pass
    finally:
        left.close()
        right.close()


def test_what_nobody_takes_does_not_pile_up() -> None:
    left, right = pair()
    right.max_frame_bytes = 1000
    left.sock.setblocking(False)
    with pytest.raises(ProtocolError, match="nobody waits for"):
        for _ in range(10_000):
            try:
                left.sock.send(raw(b'{"a":1}') * 10)
            except BlockingIOError:
                pass
            right.fill()
    assert len(right._buffer) < 200_000
    left.close()
    right.close()


def test_a_frame_too_large_is_not_sent(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    left.max_frame_bytes = 100
    with pytest.raises(WireError, match="frame of 108 bytes; at most 100"):
        left.send({"a": 1}, raw=bytes(101))
    left.send({"a": 1})
    assert right.receive() == ({"a": 1}, b"")


def test_infinity_is_not_sent(ends: tuple[Wire, Wire]) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        ends[0].send({"a": float("inf")})


def test_a_closed_end_is_an_error_on_the_other(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    left.sock.sendall(struct.pack("!I", 5))  # half a header
    left.close()
    with pytest.raises(WireError, match="closed the connection"):
        right.receive()
    with pytest.raises(WireError, match="gone"):
        for _ in range(3):
            right.send({"a": 1})


def test_pending_sees_what_nobody_took(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    assert not right.pending()
    left.send({"a": 1})
    assert right.pending()
    right.receive()
    assert not right.pending()
    left.close()
    assert not right.pending()  # an end is no message
