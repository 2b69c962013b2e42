"""Connections between ranks do not send at a pace, whatever the machine's default is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.own_library import build_for_host
from pkb_gym.engine.evaluators.gang_pool import PRELOADED as FILES
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import find_problem
from tests.waiting import PATIENCE_S

OPENS = """
import socket

def control(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode()

listener = socket.create_server(("127.0.0.1", 0))
connecting = socket.create_connection(listener.getsockname())
accepted, _ = listener.accept()
print(control(listener), control(connecting), control(accepted))
for sock in (listener, connecting, accepted, socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)):
    sock.close()
"""


def test_sockets_of_a_process_that_preloads_the_library_take_reno(tmp_path: Path, compiled_before: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(build_for_host(FILES, CompileCache.in_folder(compiled_before)))
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", OPENS]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert run.stdout.split() == ["reno"] * 3


SHOWS = """
import socket

import torch
import torch.distributed as dist


def solution(tensor):
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        print("control", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16))
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap: ranks without a network of their own share ours")
def test_ranks_of_a_candidate_have_reno_and_cannot_choose(local_evaluator: LocalEvaluator) -> None:
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), SHOWS, config)
    assert feedback.passed, feedback.message
    assert "control b'reno" in feedback.output and "cubic" not in feedback.output
