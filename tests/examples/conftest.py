"""The fake evaluator, a service over it, and a small model, as other tests have them."""

from __future__ import annotations

from tests.envs.conftest import evaluator
from tests.serve.conftest import owners, server, service
from tests.training.conftest import corpus, scratch_model

__all__ = ["corpus", "evaluator", "owners", "scratch_model", "server", "service"]
