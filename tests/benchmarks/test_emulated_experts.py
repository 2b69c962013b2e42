"""What is run on emulated GPUs, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import emulated_experts
from benchmarks.emulated_experts import Run, candidate_runs, continued, in_order, packed, unpacked
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.config import EvalConfig


class FakeEvaluator:
    """Notes how it is configured."""

    def evaluate(self, _problem: object, _source: str, config: EvalConfig) -> None:
        self.config = config
        raise ConfigError("noted")


def test_the_first_seed_of_all_comes_before_further_seeds() -> None:
    kernels = ("expert", "tile=4")
    planned = [Run("Gather", kernel, "passed", "", 2, seed) for kernel in kernels for seed in range(3)]
    assert [(run.kernel, run.seed) for run in in_order(planned)] == [
        *((kernel, 0) for kernel in kernels),
        *(("expert", seed) for seed in (1, 2)),
        *(("tile=4", seed) for seed in (1, 2)),
    ]


def test_candidates_are_configured_as_by_their_files() -> None:
    """Those whose synchronisation is the question have the detector; none is timed."""
    configs = {}
    for run in candidate_runs():
        evaluator = FakeEvaluator()
        assert run.evaluate(evaluator)["verdict"] == "refused"  # type: ignore[arg-type]
        configs[run.kernel] = (run, evaluator.config)
    assert len(configs) > 90 and {name.split("/")[0] for name in configs} >= {"good", "hostile", "racy"}
    for name, (run, config) in configs.items():
        assert (config.device, config.until, config.world_size) == ("emulated", "check", run.world_size), name
        assert config.detect_races == name.startswith(("good", "rac")), name


def test_candidates_run_on_as_many_ranks_as_asked() -> None:
    assert {run.world_size for run in candidate_runs(8)} == {8}
    assert {run.world_size for run in candidate_runs()} != {8}


def test_candidates_can_be_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["good/updates_its_graph.cu", "racy/works_ahead.cu"]
    assert [run.kernel for run in candidate_runs(only=names)] == names
    monkeypatch.setattr("sys.argv", ["emulated_experts", "--candidates", "good/none.cu"])
    with pytest.raises(SystemExit):
        emulated_experts.main()
    assert "no such file below tests/candidates/cuda: good/none.cu" in capsys.readouterr().err


def evaluated(seed: int, **more: object) -> dict[str, object]:
    kernel = {"problem": "Gather", "kernel": "expert", "expected": "passed", "world_size": 2, "digest": "0" * 16}
    return kernel | {"seed": seed, "verdict": "passed"} | more


def test_a_result_holds_once_what_the_seeds_of_a_kernel_share() -> None:
    rows = [evaluated(0, commit="a"), evaluated(1, commit="a", verdict="race"), evaluated(0, commit="b")]
    found = packed([rows[0] | {"message": "", "findings": []}, *rows[1:]])
    assert [len(row["evaluations"]) for row in found] == [2, 1]
    assert found[0]["evaluations"][0] == {"seed": 0, "verdict": "passed"}
    assert unpacked(found) == rows


def test_a_run_that_goes_on_keeps_the_header_and_the_commits_of_earlier_ones(tmp_path: Path) -> None:
    path, first, second = tmp_path / "emulated_experts.json", {"commit": "a", "machine": "m"}, {"commit": "b"}
    assert continued(path, first) == (first, [])
    path.write_text(json.dumps(first | {"rows": packed([evaluated(0, commit="a")])}))
    assert continued(path, first) == (first, [evaluated(0, commit="a")])
    head, rows = continued(path, second)
    assert (head, rows) == (first | {"later_runs": [second]}, [evaluated(0, commit="a")])
    path.write_text(json.dumps(head | {"rows": packed([*rows, evaluated(1, commit="b")])}))
    head, rows = continued(path, second)
    assert head == first | {"later_runs": [second]} and [row["commit"] for row in rows] == ["a", "b"]
