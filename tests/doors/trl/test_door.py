"""TRL's trainers on real kernels: the tool, several environments, the asynchronous worker, the way over OpenEnv."""

from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import pickle
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import uvicorn
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo import async_rollout_worker

from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.adapters.trl import environment_factories
from pkb_gym.envs import KernelTool
from pkb_openenv.server.app import make_app
from pkb_openenv.trl import RemoteKernelTool
from tests.doors import contract
from tests.doors.examples import example
from tests.training.conversations import answer, closing, submission, user
from tests.training.scripted import say, script_generation, submit, write_tiny_policy
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Its tokenizer is trained on the contract: spelt in letters, texts are twice as long, and their learning slow."""
    torch.set_num_threads(1)
    rows = [
        {"messages": [user(case.task), submission(case.source), answer(case.text), closing()]}
        for case in contract.expected()
    ]
    return write_tiny_policy(Dataset.from_list(rows), tmp_path_factory.mktemp("policy"))


def kernel_tool() -> KernelTool:
    return KernelTool(**contract.settings())


def assert_as_expected(tool, case: contract.Expected) -> None:
    assert tool.reset(problem=case.problem, seed=contract.SEED) == case.task
    assert tool.submit(case.source) == case.text
    assert tool.get_reward() == case.value


@pytest.fixture(scope="module")
def tool() -> KernelTool:
    return kernel_tool()


@pytest.mark.parametrize("case", contract.expected(), ids=lambda case: case.id)
def test_contract(tool, case):
    """One tool for all, as TRL's pool of environments has it: a rollout that was left leaves nothing to the next."""
    assert_as_expected(tool, case)
    (turn,) = tool.submissions
    assert (turn.feedback.failure, turn.value, turn.speedup) == (case.failure, case.value, case.speedup)


def test_concurrent_sessions_do_not_mix():
    cases = [case for case in contract.expected() if case.case in ("wrong", "compile_error")]
    with ThreadPoolExecutor(len(cases)) as threads:
        list(threads.map(lambda case: assert_as_expected(kernel_tool(), case), cases))


# ---- trainers --------------------------------------------------------------------------------------------------------


class Watched(GRPOTrainer):
    """Keeps what it learns from."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.found = (self._tokenizer.batch_decode(output["completion_ids"]), output["advantages"].tolist())
        return output


def train(policy, folder, factory, rows: list[dict], script, monkeypatch) -> Watched:
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", script_generation(script))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    settings = GRPOConfig(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=len(rows) * 2, num_generations=2,
        max_completion_length=3072, report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, logging_steps=1, save_strategy="no", beta=0.0, scale_rewards="none",
        shuffle_dataset=False,
    )  # fmt: skip
    trainer = Watched(
        model=str(policy), args=settings, train_dataset=Dataset.from_list(rows), environment_factory=factory
    )
    trainer.train()
    return trainer


def row(problem: str, **columns: str) -> dict:
    return {"prompt": [{"role": "user", "content": ""}], "problem": problem, "seed": contract.SEED, **columns}


def replies(*cases: contract.Expected):
    """A script: the first message of each rollout submits the next case, and the second ends it."""
    rest = iter(cases)
    return lambda before: say("Done.") if "<tool_response>" in before else submit(next(rest).source)


def short(*names: str) -> list[contract.Expected]:
    return [contract.find(*name.split("-")) for name in names]


def test_several_environments_by_a_column_of_the_dataset(policy, tmp_path, monkeypatch):
    """Two environments with another reward each; a rollout that was not judged has advantage 0 and moves no mean.

    No reward depends on a time: on a busy machine, the expert need not be faster than the baseline.
    """
    base = EpisodeSettings.of(contract.settings())
    factories = environment_factories({"ladder": base, "fast": base.model_copy(update={"reward": "fast_p:0.01"})})
    rows = [row("AllReduce", environment="ladder"), row("Gather", environment="fast")]
    cases = short("AllReduce-compile_error", "AllReduce-infrastructure", "Gather-expert", "Gather-compile_error")
    trainer = train(policy, tmp_path, factories, rows, replies(*cases), monkeypatch)
    texts, advantages = trainer.found
    assert "the evaluator" in texts[1] or "infrastructure" in texts[1]
    assert advantages == pytest.approx([0.0, 0.0, 0.5, -0.5])
    ladder, fast = trainer.environments[:2], trainer.environments[2:]
    assert [tool.episode_value for tool in ladder] == [cases[0].value, None]
    assert [tool.submissions[0].value for tool in fast] == [1.0, 0.0]


def test_the_way_over_openenv(policy, tmp_path, monkeypatch):
    cases = short("Gather-compile_error", "Gather-wrong")
    with openenv_server() as url:
        trainer = train(policy, tmp_path, partial(RemoteKernelTool, url), [row("Gather")], replies(*cases), monkeypatch)
        assert [tool.get_reward() for tool in trainer.environments] == [case.value for case in cases]
        gap = (cases[0].value - cases[1].value) / 2
        assert trainer.found[1] == pytest.approx([gap, -gap])
        tool = trainer.environments[0]
        for case in short("Gather-expert", "Gather-infrastructure", "SampleSort-deadlock"):
            assert_as_expected(tool, case)


@contextmanager
def openenv_server() -> Iterator[str]:
    app = make_app(EpisodeSettings.of(contract.settings()), 8)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(PATIENCE_S)


# ---- the asynchronous trainer's worker -------------------------------------------------------------------------------


class Completions(BaseHTTPRequestHandler):
    """`/v1/completions` of vLLM, as far as TRL's worker asks: tokens in, tokens out."""

    protocol_version = "HTTP/1.1"
    tokenizer: object
    script: object

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = type(self).script(type(self).tokenizer.decode(request["prompt"]))
        ids = type(self).tokenizer(text)["input_ids"]
        choice = {"token_ids": ids, "logprobs": {"token_logprobs": [0.0] * len(ids)}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_rollouts_of_the_asynchronous_trainer(policy):
    """`AsyncGRPOTrainer` starts this loop in a process of its own; a server speaks for vLLM, which is not here.

    Two rollouts of one group: one is judged, the other meets a failure of the evaluator.
    """
    factories = environment_factories({"ladder": EpisodeSettings.of(contract.settings())})
    assert pickle.loads(pickle.dumps(factories))["ladder"]().reset(problem="Gather").startswith("# Gather")
    cases = short("Gather-compile_error", "Gather-infrastructure")
    script, lock = replies(*cases, *cases * 8), threading.Lock()

    def answer(before: str) -> str:
        with lock:
            return script(before)

    tokenizer = AutoTokenizer.from_pretrained(policy)
    Completions.tokenizer, Completions.script = tokenizer, staticmethod(answer)
    buffer: queue.Queue = queue.Queue()
    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stop = asyncio.Event()
        loop = async_rollout_worker._AsyncRolloutLoop(
            model_name="m",
            dataset=Dataset.from_list([row("Gather", environment="ladder")]),
            reward_funcs=[],
            processing_class=tokenizer,
            eos_token_ids=[tokenizer.eos_token_id],
            rollout_buffer=buffer,
            model_version_value=multiprocessing.Value("i", 0),
            heartbeat_value=multiprocessing.Value("d", 0.0),
            failed_event=multiprocessing.Event(),
            exception_info_queue=queue.Queue(),
            metrics_queue=queue.Queue(),
            environment_factory=factories,
            num_generations=2,
            max_inflight_tasks=2,
            vllm_server_url=f"http://127.0.0.1:{server.server_port}",
            max_tokens=2048,
        )
        loop._stop_event = stop
        thread = threading.Thread(target=loop.run, daemon=True)
        thread.start()
        try:
            samples = [buffer.get(timeout=PATIENCE_S) for _ in cases]
        finally:
            loop._loop.call_soon_threadsafe(stop.set)
            thread.join(PATIENCE_S)
            server.shutdown()
    rewards = sorted((sample.metrics["rewards/KernelTool"] for sample in samples), key=str)
    assert rewards[0] == pytest.approx(cases[0].value) and rewards[1] != rewards[1], "None became NaN"
    assert [sample.advantage for sample in samples] == [0.0, 0.0]
    texts = [tokenizer.decode(sample.input_ids) for sample in samples]
    assert any(cases[0].source.split("\n")[0][:40] in text for text in texts)


def test_trl_still_has_what_this_test_uses():
    parameters = inspect.signature(async_rollout_worker._AsyncRolloutLoop.__init__).parameters
    assert {"environment_factory", "vllm_server_url", "rollout_buffer"} <= set(parameters)


def test_the_example_of_the_page_runs(policy, tmp_path, monkeypatch):
    cases = short("AllReduce-expert", "AllReduce-compile_error", "Gather-expert", "Gather-compile_error")
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", script_generation(replies(*cases, *cases * 4)))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    names: dict = {}
    exec(example("trl", model=str(policy), output=str(tmp_path)), names)
    trainer = names["trainer"]
    values = [tool.episode_value for tool in trainer.environments]
    assert None not in values, [turn.feedback or tool for tool in trainer.environments for turn in tool.submissions]
    assert trainer.state.global_step == 1 and len(values) == 4 and max(values) > 0.5 and min(values) < 0.1
