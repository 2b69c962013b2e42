"""Services over evaluators that start nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pkb_gym.engine.evaluators.remote import RemoteEvaluator
from pkb_gym.serve.server import HttpServer
from pkb_gym.serve.service import EvaluationService
from tests.serve.fake_owner import TOKEN, Owners, make_service
from tests.waiting import PATIENCE_S


@pytest.fixture
def owners() -> Owners:
    return Owners()


@pytest.fixture
def service(owners: Owners) -> Iterator[EvaluationService]:
    with make_service(owners) as service:
        yield service


@pytest.fixture
def server(service: EvaluationService) -> Iterator[HttpServer]:
    with HttpServer(service, TOKEN) as server:
        yield server


@pytest.fixture
def client(server: HttpServer) -> Iterator[RemoteEvaluator]:
    with RemoteEvaluator(server.url, TOKEN, timeout_s=PATIENCE_S, unreachable_s=1.0) as client:
        yield client
