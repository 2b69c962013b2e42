"""Real kernels: the local evaluator, the service and the cluster find the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.serve.server import HttpServer
from pkb_gym.serve.service import EvaluationService
from tests.cluster.cases import CASES, Case
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.on_cluster import PROBLEM, by_make_cluster
from tests.cluster.verdicts import verdict
from tests.serve.fake_owner import TOKEN
from tests.serve.forwarding import Borrowed
from tests.waiting import PATIENCE_S

pytestmark = by_make_cluster

REAL_POOL = "ray?pool=real&shared_most=1&checks_per_gang=1&exclusive_most=1&cpus_per_rank=0.6&shrink_s=600"


@pytest.fixture(scope="module")
def judged_here(local_evaluator: LocalEvaluator) -> Callable[[Case], Feedback]:
    return functools.cache(lambda case: local_evaluator.evaluate(PROBLEM, case.source, case.config()))


@pytest.fixture(scope="module")
def service(local_evaluator: LocalEvaluator) -> Iterator[RemoteEvaluator]:
    with (
        EvaluationService(lambda: Borrowed(local_evaluator)) as service,
        HttpServer(service, TOKEN) as server,
        RemoteEvaluator(server.url, TOKEN, timeout_s=PATIENCE_S) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def real(ray_cluster: LocalCluster) -> Iterator[RayEvaluator]:
    with RayEvaluator(REAL_POOL, timeout_s=2 * PATIENCE_S) as evaluator:
        yield evaluator


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("where", ["local_evaluator", "service", "real"])
def test_all_evaluators_find_the_same(request, judged_here, case, where):
    evaluator = request.getfixturevalue(where)
    states: list[str] = []
    feedback = evaluator.evaluate(PROBLEM, case.source, case.config(), states.append)
    assert feedback.failure is case.failure, feedback.message
    assert verdict(feedback) == verdict(judged_here(case))
    assert states, "progress is reported"
