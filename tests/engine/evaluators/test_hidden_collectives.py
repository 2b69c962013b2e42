"""Whoever calls the baseline's collectives is seen, whatever the text looks like: the kernel counts the traffic."""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.records.config import Device, EvalConfig
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.engine.stages.static import calls_torch_distributed
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, read

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap: gangs have no network of their own")
MODULE = """
import torch
import torch.distributed as dist
{more}

def solution(tensor):
    out = tensor.clone()
    {call}
    return out
"""
DISGUISES = {
    "vars": 'vars(dist)["all_" + "reduce"](out)',
    "getattr": 'getattr(dist, "all_" + "reduce")(out)',
    "dict": 'dist.__dict__["_all_reduce"[1:]](out)',
    "other name": "sync(out)",
    "group's own method": "dist.group.WORLD.allreduce([out]).wait()",
    "functional": "torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce_("
    'out, "sum", dist.group.WORLD.group_name))',
    "evaluated": 'eval("di" "st.all_" "reduce(out)")',
}
MORE = 'sync = [getattr(dist, name) for name in dir(dist) if name[:4] == "all_" and name[4:] == "reduce"][0]'


def evaluate(evaluator: LocalEvaluator, source: str, device: Device = "cpu") -> Feedback:
    until = "check" if device == "cpu" else "profile"
    config = EvalConfig(device=device, size="tiny", world_size=2, until=until, timing_budget_s=0.1)
    feedback = evaluator.evaluate(find_problem("AllReduce"), source, config)
    assert feedback.passed, feedback.message
    return feedback


@pytest.mark.parametrize("call", DISGUISES.values(), ids=list(DISGUISES))
def test_hidden_calls_are_seen(local_evaluator: LocalEvaluator, call: str) -> None:
    """`vars(module)["all_" + "reduce"]` counted as a custom kernel."""
    source = MODULE.format(call=call, more=MORE)
    assert calls_torch_distributed(source) is False, "the text shows nothing"
    assert evaluate(local_evaluator, source).calls_torch_distributed is True


@pytest.mark.gpu
@pytest.mark.skipif(len(gpus.names()) < 2, reason="needs 2 NVIDIA GPUs")
@pytest.mark.parametrize("call", DISGUISES.values(), ids=list(DISGUISES))
def test_on_gpus_the_profile_shows_them(local_evaluator: LocalEvaluator, call: str) -> None:
    source = MODULE.format(call=call, more=MORE)
    assert evaluate(local_evaluator, source, "cuda").calls_torch_distributed is True


def test_padding_hides_nothing(local_evaluator: LocalEvaluator) -> None:
    source = MODULE.format(call="dist.all_reduce(out)", more="#" * 70_000)
    assert evaluate(local_evaluator, source).calls_torch_distributed is True


def test_memory_that_ranks_share_by_themselves_is_no_library(local_evaluator: LocalEvaluator) -> None:
    assert evaluate(local_evaluator, read(FOLDER / "good" / "shares_memory.py").source).calls_torch_distributed is False
