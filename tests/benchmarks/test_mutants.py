"""The study of mutants: verdicts are counted, operations that are never come to are left out, runs can be cut off."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import common, mutants
from benchmarks import mutant_sizes as sizes
from benchmarks import mutant_study as studies
from benchmarks.cpp_operations import Kind
from benchmarks.equivalent_mutants import EQUIVALENTS, reason_why
from benchmarks.mutant_rows import Row, load, merge
from benchmarks.mutant_sizes import FURTHER, FURTHER_SIZES, config_of, sizes_of
from benchmarks.mutant_study import (
    MUTANT_TIMEOUT_S,
    Order,
    Study,
    assumed_sizes,
    evaluated,
    in_order,
    in_turn,
    place_of,
    side_by_side,
)
from benchmarks.synchronisation import InlinedSource
from benchmarks.unreached_mutants import UNREACHED, why_unreached
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.problems.catalogue import expert_source, find_problem

PROBLEM = find_problem("AllGather")

PULLS = """\
#include <cstring>

#include "pkb/symm.h"

void solution(tvm::ffi::TensorView tensor, tvm::ffi::TensorView out, pkb::Comm comm) {
  comm.barrier();
  const int64_t bytes = tensor.numel() * 2;
  char* to = static_cast<char*>(out.data_ptr());
  for (int r = 0; r < comm.world_size; ++r) std::memcpy(to + r * bytes, comm.peer(tensor.data_ptr(), r), bytes);
  comm.barrier();
  if (comm.world_size > 64) comm.wait(0);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
"""


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """AllGather's expert is `PULLS`."""
    monkeypatch.setattr(studies, "expert_source", lambda *_: PULLS)


def never_asked(_: Iterable[Order], until_s: float) -> Iterator[tuple[Order, Feedback]]:
    """Verdicts of a study that lacks none."""
    pytest.fail("an evaluation is lacking")


def study_of(evaluator: LocalEvaluator, earlier: tuple[Row, ...] = ()) -> Study:
    return Study(evaluator, "cpu", 2, ["tiny"], "check", earlier)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pulls")
def test_wrong_mutants_are_refused_and_the_expert_is_not(local_evaluator: LocalEvaluator):
    study = study_of(local_evaluator)
    work = study.prepare(PROBLEM, mutants=2, experts=[3], fences=False)
    assert [judged.wanted for judged in work] == [3, 2, 2], "the wait for more than 64 ranks is never come to"
    saved = []
    with ThreadPoolExecutor(2) as compilers:
        compiles = study.compile(work, compilers)
        study.judge(work, partial(in_turn, local_evaluator), math.inf, lambda: saved.append(study.rows))
    assert [compiled.exception() for compiled in compiles] == [None] * 3
    (expert,) = [row for row in study.rows if not row.mutant]
    (never,) = [row for row in study.rows if row.kind == Kind.WAIT]
    entry, leaving = [row for row in study.rows if row.kind == Kind.BARRIER]
    assert (expert.mutant, expert.evaluations, expert.refused, expert.failures) == ("", 3, 0, {}), expert.message
    for row in (entry, leaving):
        assert row.failures == {"race": 2} and row.is_wrong and row.is_as_expected
    assert never.size is None and never.evaluations == 0
    assert saved[-1] == study.rows
    again = study_of(local_evaluator, tuple(study.rows))
    again.judge(again.prepare(PROBLEM, 2, [3], fences=False), never_asked, math.inf, lambda: None)
    assert again.rows == study.rows, "nothing is judged twice"


@pytest.mark.usefixtures("pulls")
def test_rows_of_another_kernel_are_dropped(local_evaluator: LocalEvaluator):
    stale = Row("AllGather", "", "", "tiny", 2, "of before", evaluations=7)
    other = Row("AllReduce", "", "", "tiny", 2, "of before", evaluations=5)
    study = study_of(local_evaluator, (stale, other))
    (judged,) = study.prepare(PROBLEM, mutants=0, experts=[4], fences=False)
    assert judged.row.evaluations == 0 and judged.row.digest == InlinedSource.of(PULLS).digest
    assert study.rows == [judged.row, other]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"refused": 20}, True),
        ({"refused": 19}, False),
        ({"refused": 0, "equivalent": "a reason"}, True),
        ({"refused": 1, "equivalent": "a reason"}, False),
        ({"refused": 3, "kind": "fence"}, True),
        ({"refused": 0, "mutant": "", "kind": ""}, True),
        ({"refused": 1, "mutant": "", "kind": ""}, False),
        ({"refused": 0, "evaluations": 0, "not_judged": 3}, False),
        ({"refused": 0, "evaluations": 0}, False),
        ({"refused": 0, "evaluations": 0, "size": None}, True),
    ],
)
def test_one_wrong_verdict_is_unexpected(changes: dict[str, object], expected: bool):
    row = {"mutant": "expert:9: comm.wait(r)", "kind": "wait", "size": "tiny", "evaluations": 20} | changes
    assert Row(problem="AllReduce", world_size=2, digest="0123", **row).is_as_expected is expected


@pytest.mark.usefixtures("pulls")
def test_experts_are_judged_so_often_at_each_size(local_evaluator: LocalEvaluator):
    study = Study(local_evaluator, "cpu", 2, ["tiny", "published", "large"], "check")
    work = study.prepare(PROBLEM, mutants=0, experts=[9, 2], fences=False)
    assert [(judged.row.size, judged.wanted) for judged in work] == [("tiny", 9), ("published", 2), ("large", 2)]
    parts = in_order(work, ["tiny", "published", "large"])
    assert [[judged.row.size for judged in part] for part in parts] == [[], ["tiny"], ["published"], ["large"]]
    assert not study.prepare(PROBLEM, mutants=0, experts=[0], fences=False)


@pytest.mark.usefixtures("pulls")
def test_evaluations_in_flight_are_counted(local_evaluator: LocalEvaluator):
    """Several are begun before the first verdict is there: each with a seed of its own, and none too many."""
    study = study_of(local_evaluator)
    (judged,) = study.prepare(PROBLEM, mutants=0, experts=[3], fences=False)
    rounds = []

    def verdicts(orders: Iterable[Order], _: float) -> Iterator[tuple[Order, Feedback]]:
        rounds.append(list(orders))
        return iter([])

    ends = iter([1.0, 1.0, 3.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies.time, "monotonic", lambda: next(ends))
        study.judge([judged], verdicts, 2.0, lambda: None)
    assert [[order.seed for order in begun] for begun in rounds] == [[0, 1, 2]]


@pytest.mark.slow
@pytest.mark.usefixtures("pulls")
def test_evaluators_side_by_side_judge_alike(local_evaluator: LocalEvaluator):
    study = study_of(local_evaluator)
    (judged,) = study.prepare(PROBLEM, mutants=0, experts=[2], fences=False)
    compiled_only = replace(judged, config=judged.config.model_copy(update={"until": "compile"}))
    study.judge([compiled_only], partial(side_by_side, 2), math.inf, lambda: None)
    (row,) = study.rows
    assert (row.evaluations, row.refused, row.not_judged) == (2, 0, 0)


@pytest.mark.parametrize("options", [["--device", "cuda"], ["--until", "time"]])
def test_what_takes_the_machine_is_not_judged_side_by_side(options: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        mutants.main([*options, "--jobs", "2"])
    assert "--jobs 2: " in capsys.readouterr().err


@pytest.mark.usefixtures("pulls")
def test_a_mutant_that_does_not_compile_is_not_refused(local_evaluator: LocalEvaluator):
    study = study_of(local_evaluator)
    (judged,) = study.prepare(PROBLEM, mutants=0, experts=[20], fences=False)
    broken = replace(judged, source=PULLS + "no C++")
    study.judge([broken], partial(in_turn, local_evaluator), math.inf, lambda: None)
    (row,) = study.rows
    assert (row.evaluations, row.refused, row.not_judged) == (0, 0, studies.MOST_NOT_JUDGED)
    assert not row.is_as_expected and "does not compile" in row.message


def test_equivalent_mutants_exist():
    for each in EQUIVALENTS:
        for name in each.problems:
            source = InlinedSource.of(expert_source(find_problem(name), each.suffix) or "")
            alike = [op for op in source.operations() if op.file == each.file and op.code.startswith(each.code)]
            assert alike, f"{name} has no {each.code} in {each.file}"
            assert reason_why(name, each.suffix, each.file, alike[0].code, each.nth or 0) == each.reason
    assert reason_why("AllGather", "cu", "expert", "comm.epoch % 2", 0) is None


@pytest.mark.parametrize("each", UNREACHED, ids=lambda each: f"{each.file} {each.code}")
def test_operations_that_are_never_come_to_exist(each):
    for name in each.problems:
        source = InlinedSource.of(expert_source(find_problem(name), "cu") or "")
        places = [place_of(source, mutant) for mutant in source.mutants()]
        for ranks, reason in ((2, each.reason), (each.ranks or 8, None if each.ranks else each.reason)):
            reasons = [why_unreached(name, *place, ranks) for place in places if place[0] == each.file]
            assert (each.reason in reasons) is (reason is not None), f"{name} on {ranks} ranks"


@pytest.mark.parametrize("name", FURTHER_SIZES)
def test_further_sizes_fit_their_problems(name: str):
    problem = find_problem(name)
    assert expert_source(problem, "cu")
    for size in sizes_of(name, [FURTHER]):
        config = EvalConfig(device="cuda", world_size=2, **config_of(size))
        assert config.size is not None
        problem.check_axes(config.size, 2, config.dtype or problem.dtypes[0], "robust")


OTHER_PATHS = {
    ("AllGatherGemm", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("AllGatherGemm", sizes.NO_ROOM_TO_GATHER): "gemm_peers.h:31: comm.signal_begun()",
    ("GemmAllGather", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("GemmAllReduce", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("GemmReduceScatter", sizes.ON_CUDA_CORES): "gemm_simt.h:90: comm.barrier()",
    ("GemmReduceScatter", sizes.LARGE_PRODUCT): "expert:99: pkb::store_release(",
    ("GemmReduceScatter", sizes.NO_ROOM_FOR_PRODUCTS): "gemm_peers.h:31: comm.signal_begun()",
    ("HyenaCP", sizes.SHORT_FILTERS): "expert:648: wait_convolved(",
    ("VocabParallelLogProb", sizes.MANY_LOGITS): "expert:284: pkb::store_tagged(",
}
"""Problem and further size -> an operation that no named size comes to."""


@pytest.mark.slow
@pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
@pytest.mark.parametrize(("place", "operation"), OTHER_PATHS.items(), ids=str)
def test_further_sizes_bring_kernels_to_their_other_paths(
    place: tuple[str, str], operation: str, local_evaluator: LocalEvaluator
):
    """On emulated GPUs: without the operation, the kernel is refused."""
    name, size = place
    source = InlinedSource.of(expert_source(find_problem(name), "cu") or "")
    (mutant,) = [each for each in source.mutants() if each.name.startswith(operation)]
    config = EvalConfig(device="emulated", world_size=2, until="check", **config_of(size))
    feedback = local_evaluator.evaluate(find_problem(name), mutant.source, config)
    assert feedback.failure in {Failure.RACE, Failure.DEADLOCK, Failure.OUTPUT_MISMATCH}, feedback.message


def test_every_further_size_has_an_operation():
    assert set(OTHER_PATHS) == {(name, size) for name in FURTHER_SIZES for size in sizes_of(name, [FURTHER])}


def test_further_sizes_stand_among_the_named_ones():
    assert sizes_of("GemmAllGather", ["published", FURTHER]) == ["published", "tiny/float32"]
    assert sizes_of("AllReduce", [FURTHER, "tiny"]) == ["tiny"]
    assert config_of("tiny/float32") == {"size": "tiny", "dtype": "float32"}
    assert config_of('{"M": 64}') == {"size": {"M": 64}, "dtype": None}


@pytest.mark.usefixtures("pulls")
def test_experts_are_judged_at_further_sizes(local_evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(studies.sizes_of.__globals__, "FURTHER_SIZES", {"AllGather": ('{"M": 8}/float32',)})
    study = Study(local_evaluator, "cpu", 2, ["tiny", FURTHER], "check")
    work = study.prepare(PROBLEM, mutants=0, experts=[2, 1], fences=False)
    assert [(judged.row.size, judged.wanted) for judged in work] == [("tiny", 2), ('{"M": 8}/float32', 1)]
    assert [(judged.config.size, judged.config.dtype) for judged in work] == [("tiny", None), ({"M": 8}, "float32")]
    assert [[judged.row.size for judged in part] for part in in_order(work, ["tiny", FURTHER])] == [
        [],
        ["tiny"],
        ['{"M": 8}/float32'],
    ]


@pytest.mark.usefixtures("pulls")
def test_mutants_of_another_result_are_left_out(local_evaluator: LocalEvaluator):
    entry, leaving, never = InlinedSource.of(PULLS).mutants()
    rows = [
        Row("AllGather", entry.name, "barrier", "tiny", 2, "d", evaluations=20),
        Row("AllGather", leaving.name, "barrier", "tiny", 2, "d"),
        Row("AllGather", "", "", "tiny", 2, "d", evaluations=200),
    ]
    assert evaluated(rows) == {("AllGather", entry.name)}
    known = assumed_sizes([PROBLEM], "cpp", ["published", "tiny"])
    assert known == {("AllGather", mutant.name): "published" for mutant in (entry, leaving, never)}
    assert set(assumed_sizes([PROBLEM], "cpp", [FURTHER]).values()) == {None}, "it has no further size"
    study = Study(local_evaluator, "cpu", 2, ["published", "tiny"], "check", known_sizes=known)
    work = study.prepare(PROBLEM, mutants=3, experts=[0], fences=False, left_out=evaluated(rows))
    assert [(judged.row.mutant, judged.row.size) for judged in work] == [
        (leaving.name, "published"),
        (never.name, "published"),
    ]


def test_operations_that_are_never_come_to_are_not_judged(local_evaluator: LocalEvaluator):
    problem = find_problem("AllReduce")
    known = assumed_sizes([problem], "cu", ["published"])
    rows = []
    for ranks in (2, 4):
        study = Study(local_evaluator, "cuda", ranks, ["published"], "check", known_sizes=known, ranks_per_gpu=2)
        study.prepare(problem, mutants=1, experts=[0], fences=False)
        rows.append({row.mutant: row for row in study.rows if row.unreached})
    two, four = rows
    assert all(row.size is None and row.is_as_expected for row in two.values())
    assert len(four) == 4 and {name.partition(": ")[2] for name in two.keys() - four.keys()} == {
        "comm.signal_block(rounds, thread)",
        "comm.wait_block(rounds, thread)",
    }


def test_results_are_written_and_gone_on_with(
    tmp_path: Path, local_evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
):
    del local_evaluator  # one at a time in this process
    path = tmp_path / "mutants.json"
    options = ["--sizes", "tiny", "--world-size", "2", "--budget-s", "0", "--mutants", "0", "--experts", "1"]
    options += ["--problems", "AllGather", "--out", str(tmp_path)]
    monkeypatch.setattr(common, "checkout_commit", lambda: "abc")
    assert mutants.main(options) == 1, "it was not judged"
    (row,) = load(path)
    assert (row.problem, row.mutant, row.evaluations) == ("AllGather", "", 0), "no evaluation begins after the budget"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rows": [asdict(replace(row, evaluations=1))]}))
    assert mutants.main(options) == 0, "nothing is lacking"
    monkeypatch.setattr(common, "checkout_commit", lambda: "abd")
    assert mutants.main(options) == 1, "verdicts of another commit do not count"


def test_results_of_the_same_kernel_add_up_and_the_last_counts_where_it_differs(tmp_path: Path):
    def result(name: str, *problems: str, gpu: str = "H200", device: str = "cuda", digest: str = "d") -> Path:
        counts = {"evaluations": 2, "refused": 1, "failures": {"race": 1}, "message": name}
        rows = [asdict(Row(problem, "wait", "wait", "tiny", 2, digest, None, **counts)) for problem in problems]
        about = {"command": f"run {name}", "commit": name, "device": device, "world_size": 2, "until": "check"}
        about |= {"sizes": ["tiny", f"size of {name}"]}
        path = tmp_path / name / "mutants_2_gpus.json"
        path.parent.mkdir()
        path.write_text(json.dumps(about | {"gpus": [gpu, gpu], "rows": rows}))
        return path

    earlier = result("a", "Reduce", "Gather", gpu="H100"), result("b", "AllReduce", "Reduce")
    merge([*earlier, result("c", "Gather", digest="new")], tmp_path)
    rows = load(tmp_path / "mutants_2_gpus.json")
    assert [(row.problem, row.digest, row.evaluations, row.refused, row.commit, row.message) for row in rows] == [
        ("AllReduce", "d", 2, 1, "b", "b"),
        ("Gather", "new", 2, 1, None, "c"),
        ("Reduce", "d", 4, 2, "a", "a"),
    ]
    assert rows[-1].failures == {"race": 2}
    merged = json.loads((tmp_path / "mutants_2_gpus.json").read_text())
    assert (merged["command"], merged["commit"]) == ("run a & run b & run c", "c")
    assert merged["gpus"] == ["H100", "H100", "H200", "H200"]
    assert merged["sizes"] == ["tiny", "size of a", "size of b", "size of c"]
    with pytest.raises(SystemExit, match="device differs: cuda, cpu"):
        merge([tmp_path / "a" / "mutants_2_gpus.json", result("e", "Gather", device="cpu")], tmp_path)


def test_rows_are_of_the_commit_of_their_evaluations():
    """A row that had none yet passed its result's commit on to the evaluations of a later one."""
    begun = Row("Reduce", "wait", "wait", "tiny", 2, "d", commit="a")
    evaluated = replace(begun, evaluations=3, refused=3, commit=None)
    assert begun.plus(evaluated).commit is None
    assert replace(evaluated, commit="b").plus(evaluated).commit == "b"


def test_a_mutant_with_a_size_has_no_row_without_one(tmp_path: Path):
    about = {"command": "run", "commit": "c", "device": "cuda", "world_size": 2, "until": "check", "gpus": ["H200"]}
    about |= {"sizes": ["tiny"]}
    missing = Row("Reduce", "wait", "wait", None, 2, "d")
    paths = []
    for number, rows in enumerate(([missing, replace(missing, mutant="never")], [replace(missing, size="tiny")])):
        paths.append(tmp_path / str(number) / "mutants_2_gpus.json")
        paths[-1].parent.mkdir()
        paths[-1].write_text(json.dumps(about | {"rows": [asdict(row) for row in rows]}))
    merge(paths, tmp_path)
    assert [(row.mutant, row.size) for row in load(tmp_path / paths[0].name)] == [("never", None), ("wait", "tiny")]


def test_a_shared_gpu_has_its_sizes_from_another_result(capsys: pytest.CaptureFixture[str]):
    shared = ["--device", "cuda", "--ranks-per-gpu", "2"]
    for options, expected in (
        (shared, "give --sizes-of FILE too"),
        ([*shared, "--sizes-of", "mutants_2_gpus.json"], "give --until check too"),
        (["--device", "cuda", "--jobs", "2"], "disturb each other's timing"),
    ):
        with pytest.raises(SystemExit):
            mutants.main(options)
        assert expected in capsys.readouterr().err


@pytest.mark.usefixtures("pulls")
def test_a_shared_gpu_needs_every_size(local_evaluator: LocalEvaluator):
    work = InlinedSource.of(PULLS).mutants()
    known = {("AllGather", mutant.name): "tiny" for mutant in work}
    study = Study(local_evaluator, "cuda", 2, ["tiny"], "check", known_sizes=known, ranks_per_gpu=2)
    judged = study.prepare(PROBLEM, mutants=1, experts=[0], fences=False)
    assert {each.config.ranks_per_gpu for each in judged} == {2}
    assert {each.config.timeout_s for each in judged} == {2 * MUTANT_TIMEOUT_S["cuda"]}
    study = Study(local_evaluator, "cuda", 2, ["tiny"], "check", ranks_per_gpu=2)
    with pytest.raises(SystemExit, match=r"AllGather: no size of .* is known"):
        study.prepare(PROBLEM, mutants=1, experts=[0], fences=False)


@pytest.mark.usefixtures("pulls")
@pytest.mark.parametrize(("device", "times"), [("cuda", 3), ("cpu", 1)])
def test_evaluators_that_share_gpus_wait_longer(device: str, times: int, local_evaluator: LocalEvaluator):
    known = {("AllGather", mutant.name): "tiny" for mutant in InlinedSource.of(PULLS).mutants()}
    study = Study(local_evaluator, device, 2, ["tiny"], "check", known_sizes=known, evaluators=3)
    judged = study.prepare(PROBLEM, mutants=1, experts=[0], fences=False)
    assert {each.config.timeout_s for each in judged} == {times * MUTANT_TIMEOUT_S[device]}
