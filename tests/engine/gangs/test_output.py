"""Output of ranks: who wrote which line, and how much is kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import pytest

from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.output import KEPT_BYTES, MAX_BYTES, RankOutput

Pipes = tuple[RankOutput, Sequence[int]]


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    output = RankOutput(2)
    with contextlib.closing(output), output.writing_ends() as writing:
        yield output, writing


def test_a_line_that_came_in_pieces_is_one_line_of_its_rank(pipes: Pipes) -> None:
    output, writing = pipes
    for rank, piece in ((0, b"one "), (1, b"other\n\n"), (0, b"line\nthe next")):
        os.write(writing[rank], piece)
        assert output.drain(rank)
    assert output.tail == "rank 1: other\nrank 1: \nrank 0: one line\nrank 0: the next\n"
    assert output.tail_of(0) == "one line\nthe next"


def test_the_end_is_kept_of_many_lines_and_of_a_long_one(pipes: Pipes) -> None:
    output, writing = pipes
    for number in range(100):
        os.write(writing[1], b"%03d" % number + b"x" * 500 + b"\n")
        output.drain(1)
    lines = output.tail.splitlines()
    assert lines[-1].startswith("rank 1: 099") and len(lines) == KEPT_BYTES // 504
    os.write(writing[0], b"y" * 3 * KEPT_BYTES + b"end")
    output.drain(0)
    assert output.tail.endswith("yend\n") and len(output.tail_of(0)) == KEPT_BYTES


def test_too_much_from_all_ranks_together_fails_the_gang(pipes: Pipes) -> None:
    output, writing = pipes
    piece = b"z" * (1 << 16)
    with pytest.raises(GangFailed, match="more than 16 MiB"):
        for number in range(MAX_BYTES // len(piece) + 1):
            os.write(writing[number % 2], piece)
            output.drain(number % 2)


def test_the_end_of_a_rank_is_the_end_of_its_output() -> None:
    output = RankOutput(1)
    with contextlib.closing(output):
        with output.writing_ends() as (writing,):
            os.write(writing, b"last")
        assert output.drain(0) and not output.drain(0)
        assert output.tail == "rank 0: last\n"
    output.close()  # again: nothing happens
