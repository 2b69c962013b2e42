"""docs/native-abi.md shows the signature as it is generated, and its worked example is judged right."""

from __future__ import annotations

import re

import pytest

from pkb_gym.engine.config import EvalConfig
from pkb_gym.engine.feedback import Stage
from pkb_gym.engine.signature import cpp_signature
from pkb_gym.problems.catalogue import find_problem
from tests.docs.pages import DOCS, ROOT, code_blocks

PAGE = DOCS / "native-abi.md"
SYMM_H = ROOT / "pkb_gym" / "engine" / "include" / "pkb" / "symm.h"


def test_the_signature_is_the_generated_one():
    shown = code_blocks(PAGE, "signature")
    assert shown, "the page shows no signature"
    for name, text in shown.items():
        assert text == cpp_signature(find_problem(name))


def test_the_worked_example_passes(evaluator):
    config = EvalConfig(device="cpu", world_size=2, size="tiny", timing_budget_s=0.05)
    examples = code_blocks(PAGE, "evaluate")
    assert examples, "the page evaluates nothing"
    for name, source in examples.items():
        feedback = evaluator.evaluate(find_problem(name), source, config)
        assert feedback.passed and feedback.stage is Stage.PROFILE, feedback.message
        assert feedback.profile.ranks[0].put_bytes == 32 * 48 * 2, "one peer, one tensor a call"


@pytest.mark.parametrize("member", ["group", "peer", "put", "get", "signal", "wait", "barrier", "scratch"])
def test_every_public_member_is_on_the_page(member):
    public = SYMM_H.read_text(encoding="utf-8").split("private:")[0]
    assert re.search(rf"\b{member}\(", public), f"{member} is no longer in symm.h"
    assert f"`comm.{member}" in PAGE.read_text(encoding="utf-8")
