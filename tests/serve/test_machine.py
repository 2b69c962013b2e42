"""Task texts, devices and limits come from the machine of the service, on a machine that is another one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import gymnasium as gym
import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.evaluators.caching import CachingEvaluator
from pkb_gym.engine.evaluators.evaluator import machine_of
from pkb_gym.engine.evaluators.remote import MACHINE, RemoteEvaluator
from pkb_gym.engine.stages.execution_environment import this_machine
from pkb_gym.envs import PKBEnv
from pkb_gym.envs.evaluator_registry import add_evaluator, close_evaluators
from pkb_gym.envs.session import SubmissionSession
from pkb_gym.envs.text.topology import NO_GPU
from pkb_gym.serve.server import HttpServer
from tests.fake_gpus import gpu_node, pretend
from tests.serve.fake_owner import TOKEN, Owners, make_service


@pytest.fixture(autouse=True)
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PKB_TOKEN", TOKEN)
    pretend(monkeypatch)
    yield
    close_evaluators()


@pytest.fixture
def owners() -> Owners:
    return Owners(described=gpu_node(8))


def test_the_description_crosses_the_wire(client):
    assert client.machine() == gpu_node(8)
    assert machine_of(CachingEvaluator(client)) == gpu_node(8)


def test_it_is_requested_once(client, server, monkeypatch):
    asked: list[str] = []
    once = RemoteEvaluator._once

    def counted(self: RemoteEvaluator, method: str, path: str, *rest: object) -> bytes:
        asked.append(path)
        return once(self, method, path, *rest)

    monkeypatch.setattr(RemoteEvaluator, "_once", counted)
    for _ in range(3):
        client.machine()
    copied = pickle.loads(pickle.dumps(client))
    assert copied.machine() == copy.deepcopy(client).machine() == gpu_node(8)
    assert asked == [MACHINE]


def test_it_is_requested_again_until_the_peaks_are_known(client, owners):
    client.status()
    owners.described = gpu_node(0, cpu=None, gpu=None, gpu_names=())
    assert client.machine().gpu is None
    owners.opened[0].described = gpu_node(8)
    assert client.machine().gpu is not None


def test_the_task_is_about_the_machine_of_the_service(server):
    """It said that CUDA sources are not run, on a head node without GPUs."""
    env = gym.make("PKB/AllReduce-v0", evaluator=server.url, style="full")
    task = env.reset(seed=0)[0]["task"]
    assert "8 ranks, one process each, each on its own NVIDIA H200." in task and NO_GPU not in task
    assert "18 links up on each GPU" in task and "CUTLASS 9.9" in task and "for sm_100a." in task
    assert "cuda or triton or python" in task and "datasheet NVIDIA H200" in task
    config = env.unwrapped.config
    assert (config.device, config.world_size, config.size) == ("cuda", 8, "published")
    assert (env.unwrapped.request.device, env.unwrapped.request.world_size) == ("cuda", 8)


def test_frameworks_and_suites_see_it_too(server):
    session = SubmissionSession(["AllReduce", "Gather"], evaluator=server.url)
    assert "each on its own NVIDIA H200" in session.reset("Gather", seed=1)
    suite = gym.make("PKB/Suite-v0", split=["AllReduce"], evaluator=server.url, world_size=16)
    with pytest.raises(ConfigError, match=rf"^{server.url}: .*world size 16 needs as many GPUs; this machine has 8"):
        suite.reset(seed=0)


def test_a_named_evaluator_elsewhere_describes_its_machine(server):
    add_evaluator("node", lambda: RemoteEvaluator(server.url, TOKEN), elsewhere=True)
    assert "each on its own NVIDIA H200" in gym.make("PKB/AllReduce-v0", evaluator="node").reset(seed=0)[0]["task"]


def test_making_an_environment_connects_to_nothing():
    env = PKBEnv("AllReduce", evaluator="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="no argument 'wrold_size'"):
        PKBEnv("AllReduce", evaluator="http://127.0.0.1:1", wrold_size=2)
    assert env.problem.name == "AllReduce"


def test_the_memory_of_the_service_counts(server, owners, monkeypatch):
    owners.described = gpu_node(8, gpu_memory_bytes=1 << 30)
    env = PKBEnv("GNNSparseFeatureFetch", evaluator=server.url)
    with pytest.raises(ConfigError, match=r"of each GPU's memory, and this machine has 1\.0 GiB"):
        env.reset(seed=0)


def test_a_service_of_one_device_says_so(owners):
    with make_service(owners, device="cpu") as service, HttpServer(service, TOKEN) as server:
        env = PKBEnv("AllReduce", evaluator=server.url)
        assert env.config.device == "cpu"
        with pytest.raises(ConfigError, match=r"all is judged on device 'cpu'"):
            PKBEnv("AllReduce", evaluator=server.url, device="cuda").reset()


def test_a_service_without_gpus_compiles_only(server, owners):
    owners.described = gpu_node(0, gpu_names=(), gpu=None)
    env = PKBEnv("AllReduce", evaluator=server.url, device="cuda")
    with pytest.warns(UserWarning, match="the machine that judges has no GPU"):
        observation, _ = env.reset(seed=0)
    assert NO_GPU in observation["task"]


def test_a_service_of_this_machine_describes_this_machine(server, owners):
    owners.described = None
    with RemoteEvaluator(server.url, TOKEN) as client:
        assert client.machine() == this_machine()


def test_an_earlier_service_is_named():
    class Earlier(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"error": "ConfigError", "message": "GET /v1/machine: Not Found"}'
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Earlier) as earlier:
        thread = Thread(target=earlier.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{earlier.server_port}"
            with pytest.raises(ConfigError, match=rf"{url} does not describe its machine .* pkb-gym \d+\.\d+\.\d+; "):
                PKBEnv("AllReduce", evaluator=url).reset()
        finally:
            earlier.shutdown()
            thread.join()


def test_the_description_needs_a_token(server):
    with RemoteEvaluator(server.url, "another") as client, pytest.raises(ConfigError, match="PKB_TOKEN"):
        client.machine()
