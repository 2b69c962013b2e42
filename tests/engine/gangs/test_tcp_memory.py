"""The machine's memory for TCP: a gang that leaves data unread in many connections is ended."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs import tcp_memory
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, read

HOARDS = """
import socket, torch, torch.distributed as dist
kept = []
def solution(tensor):
    if not kept:
        kept.append(socket.create_server(("127.0.0.1", 0), backlog=64))
        for _ in range(8):
            kept.append(socket.create_connection(kept[0].getsockname()))
            kept[-1].sendall(b"x")  # the other end is accepted by nobody
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""


TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9C4B 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:9C4B 0100007F:D1A2 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 0100007F:9C4B 0100007F:D1A4 01 00000000:00000001 00:00000000 00000000     0        0 3 1 0 20 4 30 10 -1
   3: 0100007F:D1A4 0100007F:9C4B 04 0026B0C0:00000000 01:00000014 00000000     0        0 4 2 0 20 4 1 10 -1
"""
"""As proc(5) has it: a listener with three connections, an empty connection, data to be received, data to be sent."""


def test_connections_with_unread_data_are_counted(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(TABLE)
    assert tcp_memory._loaded(table) == 2
    assert tcp_memory._loaded(tmp_path / "tcp6") == 0, "no IPv6 here"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(socket.create_connection(listener.getsockname())).sendall(b"x")
        assert tcp_memory.loaded_connections(os.getpid()) >= 1
    assert tcp_memory.loaded_connections(1 << 30) == 0


def test_the_pool_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tcp_memory._first_mark_pages()
    assert 0 <= tcp_memory._used_pages() < 4 * mark
    monkeypatch.setattr(tcp_memory, "Path", lambda name: Path(str(name).replace("/proc/sys", str(tmp_path))))
    assert mark / 4 < tcp_memory._first_mark_pages() < 4 * mark, "as in a container, where tcp_mem is not shown"
    assert host.memory_total_bytes() > 0


def test_nothing_is_looked_at_while_there_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_memory, "loaded_connections", lambda _: 1000)
    monkeypatch.setattr(tcp_memory, "pool_is_low", lambda: False)
    tcp_memory.check_connections(os.getpid(), most=0)
    monkeypatch.setattr(tcp_memory, "pool_is_low", lambda: True)
    tcp_memory.check_connections(None, most=0)
    tcp_memory.check_connections(os.getpid(), most=1000)
    with pytest.raises(GangFailed, match="1000 connections hold unread data, at most 999 may"):
        tcp_memory.check_connections(os.getpid(), most=999)


def test_running_ranks_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(tcp_memory, "check_connections", lambda _, most: looks.append(most))
    watch = tcp_memory.ConnectionWatch(os.getpid(), ranks=2)
    watch.look()
    assert not looks
    watch._next = 0
    watch.look()
    watch.look()
    assert looks == [2 * tcp_memory.MAX_RUNNING]


@pytest.mark.skipif(not bubblewrap_works(), reason="ranks share the network of the machine")
def test_a_candidate_that_hoards_is_ended(local_evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """450 connections of each rank took all of it: calls of the baseline took 850 ms in place of 4, unseen."""
    monkeypatch.setattr(tcp_memory, "pool_is_low", lambda: True)
    honest = read(FOLDER / "good" / "reference.py")
    config = honest.config.model_copy(update={"until": "time"})
    honest.assert_as_expected(local_evaluator.evaluate(find_problem(honest.problem), honest.source, config))
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), HOARDS, config)
    assert feedback.failure == Failure.RUNTIME_ERROR and "connections hold unread data" in feedback.message
