"""The candidates for GPUs as texts. tests/engine/emulated compiles and emulates them, tests/gpu runs them."""

from __future__ import annotations

from tests.engine.attacks import families_of
from tests.engine.candidates import candidates
from tests.gpu.test_cuda_hostile import QUICK

ALL = [candidate for kind in ("good", "broken", "hostile", "racy") for candidate in candidates(f"cuda/{kind}")]


def test_every_file_states_its_purpose() -> None:
    for candidate in ALL:
        assert candidate.outcome == "passed" or candidate.words, f"{candidate.name}: words of its message are missing"
        assert candidate.kind != "good" or candidate.outcome == "passed", candidate.name
        assert candidate.kind not in ("broken", "racy") or candidate.outcome != "passed", candidate.name
        assert ("race" in candidate.options) == (candidate.outcome == "race"), candidate.name
        assert candidate.config.device == "cuda"


def test_each_kind_of_attack_has_a_quick_test_on_gpus() -> None:
    hostile = [candidate for candidate in ALL if candidate.kind == "hostile"]
    quick = [candidate for candidate in hostile if candidate.path.stem in QUICK]
    assert len(quick) == len(QUICK)
    aims = {family.aim for candidate in hostile for family in families_of(candidate)}
    assert aims == {family.aim for candidate in quick for family in families_of(candidate)}
