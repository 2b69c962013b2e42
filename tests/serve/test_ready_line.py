"""The line of a service that listens, which may come in pieces."""

from __future__ import annotations

import os
import threading

import pytest

from pkb_gym.serve.ready_line import MAX_BYTES, ReadyLine, print_ready, read_ready

LINE = ReadyLine(url="http://127.0.0.1:1", pid=7, token_file="/tmp/token")


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    open_ends = {reading, writing}

    def close(end):
        open_ends.discard(end)
        os.close(end)

    yield reading, writing, close
    for end in open_ends:
        os.close(end)


def test_it_is_written_in_one_piece_and_read_back(pipe, monkeypatch):
    """Under PYTHONUNBUFFERED `print` wrote the line and its end apart, and who had read the first ended the service."""
    reading, writing, _ = pipe
    pieces = []

    class Unbuffered:
        def write(self, text):
            pieces.append(text)
            os.write(writing, text.encode())

        def flush(self):
            pass

    monkeypatch.setattr("sys.stdout", Unbuffered())
    print_ready(LINE)
    assert len(pieces) == 1 and pieces[0].endswith("}\n")
    os.write(writing, b"more")
    assert read_ready(reading, 60) == LINE
    assert os.read(reading, 10) == b"more"


def test_pieces_are_waited_for(pipe):
    reading, writing, _ = pipe
    os.write(writing, LINE.model_dump_json().encode())
    found = []
    reader = threading.Thread(target=lambda: found.append(read_ready(reading, 60)))
    reader.start()
    os.write(writing, b"\n")
    reader.join(60)
    assert found == [LINE]


def test_no_line(pipe):
    reading, writing, close = pipe
    os.write(writing, b'{"url"')
    with pytest.raises(TimeoutError, match=r"no whole line after 0\.01 s"):
        read_ready(reading, 0.01)
    os.write(writing, b"\n")
    os.write(writing, b"x" * (MAX_BYTES // 2))
    with pytest.raises(ValueError, match="JSON"):
        read_ready(reading, 60)
    close(writing)
    assert read_ready(reading, 60) is None, "the writer ended"
