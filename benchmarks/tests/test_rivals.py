"""Plain times of kernels beside each other: the loop on the CPU, gangs that end, and what rows say."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu_experts import EXPERT
from benchmarks.rivals import __main__ as rivals
from benchmarks.rivals.__main__ import REFERENCE, Plain, cases, inside, kernels_on, main, markdown, row_of
from benchmarks.rivals.messages import Kernel, KernelTimes, Measure
from benchmarks.rivals.plain_gang import GangEnded, PlainTime, _slowest, measure_all
from benchmarks.rivals.plain_rank import relative_error
from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.rewards.examples import failed, timed

WRONG = "def solution(tensor):\n    return tensor.clone()\n"
MISSING = "import no_such_wheel\n"
EXITS = "import os\n\n\ndef solution(tensor):\n    os._exit(3)\n"


@pytest.mark.slow
def test_kernels_are_timed_beside_each_other_in_plain_processes() -> None:
    """One that is wrong, one whose wheel is missing and one that ends its rank cost the others nothing."""
    (case,) = cases(["AllReduce"], [8192], 2)
    kernels = kernels_on("cpu", case.problem, 2) | {"wrong": WRONG, "missing": MISSING, "exits": EXITS}
    with Plain("cpu", 2, [case], sets_bytes=1 << 20) as plain:
        found = plain.measure(case, kernels, calls=3, rounds=4)
        again = plain.measure(case, {REFERENCE: kernels[REFERENCE]}, calls=1, rounds=1)
    for name in (EXPERT, REFERENCE):
        time = found[name]
        assert time.obstacle is None and time.call_us is not None and 0 < time.low_us <= time.call_us <= time.high_us
    assert again[REFERENCE].call_us is not None, "the gang stands for the next case"
    assert found["wrong"].obstacle.startswith("ValueError: its result is wrong: relative error")
    assert found["missing"].obstacle == "ModuleNotFoundError: No module named 'no_such_wheel'"
    assert found["exits"].obstacle.startswith("it ended its ranks")


def test_elements_that_are_alike_deviate_by_nothing() -> None:
    right = torch.tensor([1.0, torch.nan, torch.inf, 2.0])
    assert relative_error(right.clone(), right) == 0
    assert relative_error(torch.tensor([1.0, torch.nan, torch.inf, 2.5]), right) == pytest.approx(0.5 / 5**0.5)
    assert not relative_error(torch.tensor([1.0, 0.0, torch.inf, 2.0]), right) <= 1


def order(*names: str) -> Measure:
    spec = WorkloadSpec("declared.py", "tiny", 2, "bfloat16", "robust", "", 0, 0, "", "")
    return Measure(spec, "", 0, tuple(Kernel(name, "native") for name in names), 1, 1, 1)


class Gang:
    """Ends with some kernels."""

    def __init__(self, log: list[str], ends_with: tuple[str | None, ...]) -> None:
        self.log, self.ends_with = log, ends_with

    def measure(self, order: Measure, libraries: list[bytes]) -> list[KernelTimes]:
        names = [kernel.name for kernel in order.kernels]
        assert libraries == [name.encode() for name in names]
        self.log.append(" ".join(names))
        for name in self.ends_with:
            if name is None or name in names:
                raise GangEnded(name, "Killed")
        return [KernelTimes(name, (3.0, 1.0, 2.0)) for name in names]

    def __exit__(self, *_: object) -> None:
        self.log.append("ended")


@pytest.mark.parametrize(
    ("ends_with", "times", "stands", "log"),
    [
        ((), {"a": 2.0, "b": 2.0}, True, ["a b"]),
        (("b",), {"a": 2.0, "b": None}, True, ["a b", "ended", "a"]),
        (("a", "b"), {"a": None, "b": None}, False, ["a b", "ended", "b", "ended"]),
        ((None,), {"a": None, "b": None}, False, ["a b", "ended"]),
    ],
)
def test_a_kernel_that_ends_a_gang_is_left_out(
    ends_with: tuple[str | None, ...], times: dict[str, float | None], stands: bool, log: list[str]
) -> None:
    seen: list[str] = []
    found, gang = measure_all(lambda: Gang(seen, ends_with), order("a", "b"), {"a": b"a", "b": b"b"})
    assert {name: time.call_us for name, time in found.items()} == times
    assert (gang is not None, seen) == (stands, log)
    assert all("Killed" in time.obstacle for time in found.values() if time.call_us is None)


def test_the_slowest_rank_of_each_block_counts_and_an_obstacle_is_the_rank_s_own() -> None:
    ranks = [KernelTimes("a", (1.0, 5.0), 0.1), KernelTimes("a", (2.0, 4.0), 0.2)]
    assert _slowest(ranks) == KernelTimes("a", (2.0, 5.0), 0.2)
    ranks = [KernelTimes("a", obstacle="it failed on another rank"), KernelTimes("a", obstacle="no memory")]
    assert _slowest(ranks).obstacle == "no memory"


def test_tensors_have_the_bytes_that_were_asked_for() -> None:
    found = {(case.problem.name, case.label): case for case in cases(rivals.COLLECTIVES, [8192, 2 << 20], 2)}
    assert len(found) == 8
    for (name, nbytes), case in found.items():
        parts = 2 if name in ("ReduceScatter", "AllToAll") else 1
        assert 2 * parts * case.size["M"] * case.size["N"] == nbytes
    with pytest.raises(ValueError, match="expected multiples of 2048, got 1000"):
        list(cases(["AllReduce"], [1000], 2))
    assert [case.label for case in cases(["AllGatherGemm"], [8192], 2)] == ["large", "1024^3"]


def test_a_row_states_what_a_call_takes_more_inside_the_evaluator() -> None:
    (case,) = cases(["AllReduce"], [8192], 2)
    evaluator: Any = SimpleNamespace(
        evaluate=lambda *_: timed(baseline_us=20, speedup=2.0, captured_us=12, registered_us=11)
    )
    judged = inside(evaluator, case, "", "cuda", 2)
    row = row_of(case, EXPERT, PlainTime(9.25, 9.0, 9.5), judged)
    assert (row["plain_us"], row["inside_us"], row["more_inside_us"]) == (9.25, 10.0, 0.75)
    assert (row["baseline_us"], row["baseline_graph_us"], row["baseline_registered_us"]) == (20.0, 12.0, 11.0)
    evaluator = SimpleNamespace(evaluate=lambda *_: failed("compile_error", "it cannot be imported: no flashinfer"))
    row = row_of(case, "flashinfer", PlainTime(None, obstacle="no flashinfer"), inside(evaluator, case, "", "cuda", 2))
    assert row["more_inside_us"] is None and "no flashinfer" in row["plain_obstacle"]
    assert "| AllReduce | flashinfer | no flashinfer |" in markdown([row])


def test_a_run_ends_at_its_limit_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Rows are kept after each case; a case of the file is not measured again."""
    measured: list[int | str] = []

    class Timed(Plain):
        def compile(self, source: str) -> bytes:
            return b""

        def measure(self, case: Any, kernels: Any, calls: int = 0, rounds: int = 0) -> dict[str, PlainTime]:
            measured.append(case.label)
            monkeypatch.setattr(rivals.time, "monotonic", lambda: 1e12)
            return {name: PlainTime(1.0, 1.0, 1.0) for name in kernels}

    monkeypatch.setattr(rivals, "Plain", Timed)
    monkeypatch.setenv("PKB_GYM_COMMIT", "abc")
    words = ["--device", "cpu", "--problems", "AllReduce", "--bytes", "8192", "16384", "--parts", "plain"]
    words += ["--out", str(tmp_path), "--limit-s", "1000", "--resume"]
    assert main(words) == 0 and measured == [8192]
    assert "1 of 2 cases are missing: go on with --resume" in capsys.readouterr().err
    monkeypatch.setattr(rivals.time, "monotonic", lambda: 0.0)
    assert main(words) == 0 and measured == [8192, 16384]
    rows = json.loads((tmp_path / "rivals.json").read_text())["rows"]
    assert [(row["size"], row["kernel"]) for row in rows] == [
        (size, kernel) for size in (8192, 16384) for kernel in (EXPERT, REFERENCE)
    ]
    assert find_problem("AllReduce").name == rows[0]["problem"]
