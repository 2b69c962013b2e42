"""The candidates for GPUs as texts. tests/engine/emulated compiles and emulates them, tests/gpu runs them."""

from __future__ import annotations

from tests.engine.candidates import candidates

ALL = [candidate for kind in ("good", "broken", "hostile", "racy") for candidate in candidates(f"cuda/{kind}")]


def test_every_file_states_its_purpose() -> None:
    for candidate in ALL:
        assert candidate.outcome == "passed" or candidate.words, f"{candidate.name}: words of its message are missing"
        assert candidate.kind != "good" or candidate.outcome == "passed", candidate.name
        assert candidate.kind not in ("broken", "racy") or candidate.outcome != "passed", candidate.name
        assert ("race" in candidate.options) == (candidate.outcome == "race"), candidate.name
        assert candidate.config.device == "cuda"
