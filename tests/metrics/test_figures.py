"""The record of an agent's figures, and what computing it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pkb_gym.metrics.figures import AgentFigures, agent_figures, at
from pkb_gym.metrics.results import results_by_agent
from tests.metrics.attempts import attempt

ATTEMPTS = [
    attempt("AllReduce", sample=0, speedup=2.0, low=1.8),
    attempt("AllReduce", sample=1),
    attempt("Gather", sample=0, speedup=0.5),
    attempt("Gather", sample=1, speedup=4.0),
    attempt("Gather", sample=2, failure="deadlock"),
    attempt("Scatter", failure="infrastructure"),
]


def figures(attempts=ATTEMPTS):
    (results,) = results_by_agent(attempts)
    return agent_figures(results)


def test_figures_by_hand():
    found = figures()
    assert (found.samples, found.unjudged) == (5, 1)
    assert [(one.k, one.estimate.clusters) for one in found.pass_at] == [(1, 2), (2, 2), (3, 1)]
    assert at(found.pass_at, 1).mean == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert at(found.pass_at, 2).mean == pytest.approx(1.0)
    assert at(found.pass_at, 4) is None and at(found.pass_at, 0) is None
    assert at(found.eager.fast_1_at, 1).mean == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found.captured is None and found.utilisation.mean == pytest.approx((0.5 + (0.125 + 1.0) / 2) / 2)
    gather, scatter = found.problems[1:]
    assert (gather.problem, gather.samples, gather.right, gather.speedup, gather.verdict) == (
        *("Gather", 3, 2, 4.0, "passed"),
    )
    assert gather.pass_at == pytest.approx((2 / 3, 1.0, 1.0)) and gather.fast_1_at[0] == pytest.approx(1 / 3)
    assert (scatter.samples, scatter.unjudged, scatter.pass_at, scatter.verdict) == (0, 1, (), "infrastructure")


def test_the_captured_baseline_has_figures_of_its_own():
    found = figures([attempt(speedup=2.0, captured_us=40.0)])
    assert (found.eager.fast_1_at[0].estimate.mean, found.captured.fast_1_at[0].estimate.mean) == (1.0, 0.0)
    assert found.problems[0].captured_speedup == pytest.approx(0.8) and found.registered is None
    registered = figures([attempt(speedup=2.0, captured_us=60.0, registered_us=40.0)]).registered
    assert registered == found.captured.model_copy(update={"baseline": "registered"})


def test_figures_survive_json():
    found = figures()
    assert AgentFigures.model_validate_json(found.model_dump_json()) == found


def test_nothing_that_could_be_judged_has_figures():
    found = figures([attempt(failure="infrastructure")])
    assert found.pass_at == () and found.eager.area is None and found.plateau is None and found.samples == 0


@pytest.mark.parametrize("name", ["metrics", "report"])
def test_no_torch_is_loaded(name):
    code = f"""
import importlib, pkgutil, sys
import pkb_gym.{name}
for module in pkgutil.walk_packages(pkb_gym.{name}.__path__, "pkb_gym.{name}."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name in ("torch", "transformers", "tvm_ffi", "gymnasium", "matplotlib")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
