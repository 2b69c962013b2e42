"""References, submitted as candidates of the python dialect, pass the whole way to the check.

`make test` submits a sample of them, `make all` every one.
Under the published protocol some do: the tests of each problem hold its reference against the published checks.
"""

from __future__ import annotations

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, reference_source
from tests.whole_tables import sampled

CASES = [
    *((problem, "robust") for problem in sampled(catalogue(), 12)),
    *((problem, "published") for problem in sampled(catalogue()[::8], 6)),
]


@pytest.mark.parametrize(("problem", "protocol"), CASES, ids=lambda each: getattr(each, "name", each))
def test_reference_is_a_right_candidate(problem, protocol, local_evaluator: LocalEvaluator):
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check", protocol=protocol)
    feedback = local_evaluator.evaluate(problem, reference_source(problem), config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}"
    assert feedback.check is not None and feedback.check.trials == feedback.config.trials
    assert feedback.calls_torch_distributed, "a reference communicates by torch.distributed"
