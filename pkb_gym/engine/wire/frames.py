"""Length-limited frames of JSON and raw bytes over a stream socket, with file descriptors alongside. Never pickle."""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence

from .messages import Kind, ProtocolError, WireError, WireMessage, read

HEADER = struct.Struct("!II")
MAX_FRAME_BYTES = 64 << 20
"""Largest frame that is sent or accepted; a longer one ends the connection."""

MAX_HEAD_BYTES = 8 << 20
"""Largest JSON part of one that is accepted: parsed, it takes many times its room."""

MAX_FDS = 64
SO_PASSRIGHTS = 83
"""Option of linux/socket.h, on the architectures that the system call filter knows."""

IN_FLIGHT_S = 30.0
"""Maximum wait in seconds of a frame with descriptors whose user has `ulimit -n` under way (unix(7), ETOOMANYREFS);
candidates of the same user may hold some until they end."""


class Wire:
    """One end of a connection."""

    def __init__(self, sock: socket.socket, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.sock = sock
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def refuse_descriptors(self) -> None:
        """Has the kernel refuse descriptors that the other side sends along, where it can (Linux 6.16).

        Read by `receive`, they are closed at once, and to close one may take as long as its sender likes.
        """
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self.sock.fileno()

    def send(self, message: WireMessage, raw: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Sends one frame.

        Args:
            message: JSON part of the frame.
            raw: Bytes that follow it.
            fds: File descriptors that travel with the frame; the sender keeps its own.

        Raises:
            WireError: the frame is too large, or the other side is gone.
        """
        head = json.dumps(message.to_json(), separators=(",", ":"), allow_nan=False).encode()
        if len(head) + len(raw) > self.max_frame_bytes:
            raise WireError(f"frame of {len(head) + len(raw)} bytes; at most {self.max_frame_bytes} are allowed")
        frame = HEADER.pack(len(head), len(raw)) + head + raw
        try:
            sent = self._send_with_fds(frame, fds) if fds else self.sock.send(frame)
            if sent < len(frame):
                self.sock.sendall(memoryview(frame)[sent:])
        except OSError as error:
            raise WireError(f"the other side is gone: {error}") from None

    def _send_with_fds(self, frame: bytes, fds: Sequence[int]) -> int:
        """Sends what fits of a frame; waits while its user has too many descriptors under way, which others receive."""
        deadline = time.monotonic() + IN_FLIGHT_S
        while True:
            try:
                return socket.send_fds(self.sock, [frame], list(fds))
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def receive(self, *kinds: type[Kind]) -> tuple[Kind, bytes]:
        """Waits for one frame, whose message must be of one of these kinds.

        Raises:
            WireError: the connection ended.
            ProtocolError: the frame is too large, or no such message.
        """
        while (frame := self.take(*kinds)) is None:
            self._fill(self._read())
        return frame

    def receive_with_fds(self, *kinds: type[Kind]) -> tuple[Kind, bytes, list[int]]:
        """Receives a message with the descriptors sent along; the receiver owns them.

        Raises:
            WireError: the connection ended, or this process has no room for the descriptors.
            ProtocolError: the frame is too large, or no such message.
        """
        fds = array.array("i")
        try:
            while (frame := self.take(*kinds)) is None:
                self._fill(self._read_with_fds(fds))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return *frame, list(fds)

    def _read_with_fds(self, fds: array.array[int]) -> bytes:
        """Reads what is there, once, and adds the descriptors that came along."""
        room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise WireError(f"the other side is gone: {error}") from None
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        if flags & socket.MSG_CTRUNC:  # the kernel drops what the table of open files has no room for
            raise WireError("descriptors that were sent along are lost: too many files are open here")
        return data

    def pending(self) -> bool:
        """Whether something has arrived that nobody took."""
        return bool(self._buffer) or bool(select.select([self.sock], [], [], 0)[0] and self._has_data())

    def _has_data(self) -> bool:
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False  # gone, which is for others to notice

    def fill(self) -> None:
        """Reads what is there, once; for a socket that a selector reported readable.

        Raises:
            WireError: the connection ended.
        """
        self._fill(self._read())

    def take(self, *kinds: type[Kind]) -> tuple[Kind, bytes] | None:
        """The next frame if it has arrived whole, else None.

        Raises:
            ProtocolError: the frame is too large, or no message of these kinds.
        """
        if len(self._buffer) < HEADER.size:
            return None
        head_bytes, raw_bytes = HEADER.unpack_from(self._buffer)
        total = HEADER.size + head_bytes + raw_bytes
        if total > self.max_frame_bytes + HEADER.size:
            raise ProtocolError(f"frame of {total} bytes announced; at most {self.max_frame_bytes} are allowed")
        if head_bytes > MAX_HEAD_BYTES:
            raise ProtocolError(f"frame with {head_bytes} bytes of JSON announced; at most {MAX_HEAD_BYTES} allowed")
        if len(self._buffer) < total:
            return None
        head = bytes(self._buffer[HEADER.size : HEADER.size + head_bytes])
        raw = bytes(self._buffer[HEADER.size + head_bytes : total])
        del self._buffer[:total]
        try:
            message = json.loads(head)
        except (ValueError, RecursionError):
            raise ProtocolError("frame is no JSON") from None
        if not isinstance(message, dict):
            raise ProtocolError("frame is no JSON object")
        return read(message, *kinds), raw

    def close(self) -> None:
        """Closes the socket."""
        self.sock.close()

    def _read(self) -> bytes:
        try:
            return self.sock.recv(1 << 16)
        except OSError as error:
            raise WireError(f"the other side is gone: {error}") from None

    def _fill(self, data: bytes) -> None:
        if not data:
            raise WireError("the other side closed the connection")
        if len(self._buffer) > self.max_frame_bytes + HEADER.size:
            raise ProtocolError(f"more than {self.max_frame_bytes} bytes arrived that nobody waits for")
        self._buffer += data


def pair() -> tuple[Wire, Wire]:
    """Two connected ends."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Wire(left), Wire(right)
