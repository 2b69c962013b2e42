"""Runs whose rollouts vLLM generates: a server speaks its protocol, and an engine in the process its calls.

Ranks have open rollouts of unequal number, and every completion belongs to its prompt. `make test` runs the most
distributed of them, whose trainers, server and service are processes and addresses of their own; `make all` runs each.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pkb_gym.engine.support import env_vars
from pkb_gym.serve.server import HttpServer
from tests.serve.fake_owner import TOKEN, Owners, make_service
from tests.training.numbered_tasks import TURNS, logprob_of, tasks_named
from tests.training.rank_processes import free_port, run_ranks
from tests.training.scripted import weights
from tests.training.vllm_server import vllm_server
from tests.waiting import PATIENCE_S
from tests.whole_tables import by_make_all

STAND_INS = Path(__file__).parent / "stand_ins"


def reports_of_ranks(name: str, policy: Path, output: Path, *urls: str, count: int = 2) -> list[dict]:
    """The reports of the ranks of a run."""
    environment = env_vars.with_changes(PYTHONPATH=str(STAND_INS), PKB_TOKEN=TOKEN)
    url, *rest = urls or ("http://127.0.0.1:1",)
    arguments = [name, policy, output, url, free_port(), *rest]
    run_ranks("tests.training.vllm_rank", arguments, environment, PATIENCE_S, count=count)
    return [json.loads((output / f"{name}_{rank}.json").read_text()) for rank in range(count)]


def assert_own(reports: list[dict]) -> None:
    """Each of the two steps has a group of either task, and all its completions name the task of their prompt."""
    submissions: dict[int, Counter[int]] = {1: Counter(), 2: Counter()}
    for rollout in [rollout for report in reports for rollout in report["rollouts"]]:
        (task,) = tasks_named(rollout["prompt"])
        assert tasks_named(rollout["completion"]) == {task}, rollout
        assert rollout["logprobs"] == [logprob_of(task)]
        submissions[task][rollout["completion"].count("<tool_call>")] += 1
    assert submissions == {task: Counter(TURNS[task % 2] * 2) for task in (1, 2)}


@pytest.mark.slow
def test_completions_of_a_server_and_verdicts_of_another(policy, tmp_path):
    """Three parts that could be on three nodes: trainer processes, a server of vLLM, a service that judges."""
    owners = Owners()
    with vllm_server(policy) as server, make_service(owners) as service, HttpServer(service, TOKEN) as judge:
        server.max_model_len = 2500
        reports = reports_of_ranks("server", policy, tmp_path, server.url, judge.url)
    assert_own(reports)
    assert [report["context"] for report in reports] == [2500, 2500], "the server's, which is shorter than the model's"
    assert len(server.updates) == 2
    assert {source.split(".")[0] for source in owners.requested} == {"speedup 1", "speedup 2"}


@by_make_all
@pytest.mark.slow
def test_completions_of_tensor_parallel_ranks(policy, tmp_path):
    reports = reports_of_ranks("tensor_parallel", policy, tmp_path)
    assert_own(reports)
    assert reports[0]["requests"] == reports[1]["requests"], "ranks that share a model have to ask it for the same"


@by_make_all
@pytest.mark.slow
def test_an_adapter_is_merged_into_what_the_server_has_and_a_run_of_it_resumes(policy, tmp_path):
    with vllm_server(policy) as server:
        (report,) = reports_of_ranks("resumed_adapter", policy, tmp_path, server.url, count=1)
        updates = server.updates
    base = weights(policy)
    assert len(updates) == 4, "before each of three steps, and before the third again"
    assert same(updates[0], base), "an adapter that has learnt nothing changes nothing"
    for step in (1, 2):
        adapted = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(policy), tmp_path / "whole" / f"checkpoint-{step}"
        )
        assert same(updates[step], dict(adapted.merge_and_unload().state_dict()))
        assert not same(updates[step], updates[step - 1])
    assert same(updates[3], updates[2])
    keys = ("step", "loss", "grad_norm", "reward", "submissions")
    whole, resumed = (
        [tuple(entry[key] for key in keys) for entry in report[run] if "loss" in entry] for run in ("whole", "resumed")
    )
    assert len(whole) == 3 and whole == resumed


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether both have the same weights; a tied head may be there twice."""
    names = one.keys() & other.keys()
    assert (one.keys() ^ other.keys()) <= {"lm_head.weight"}, one.keys() ^ other.keys()
    return all(torch.allclose(one[name], other[name], rtol=0, atol=1e-6) for name in names)
