"""One candidate's blocks: no input is used twice, deadlines follow the baseline, a gang that failed is a failure."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from pkb_gym.engine.compare.layout import Workload
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.problem import Axes, AxisValue, Draw
from pkb_gym.engine.problem.drawn_together import CALLS_DRAWN_TOGETHER
from pkb_gym.engine.problem.recurrence import NEW
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.reference.orders import BlockEnded, LateOutput
from pkb_gym.engine.stages.block_staging import plain
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.heap_layout import lay_out
from pkb_gym.engine.wire.abi import MAX_GROUPS
from pkb_gym.problems.catalogue import find_problem
from tests.engine.stages.fake_gangs import KERNEL, PROBLEM, WORLD_SIZE, Bench, builder

PLAIN = plain(WORLD_SIZE)


def test_the_baselines_text_goes_to_the_reference_gang_and_everything_is_let_go_of_in_the_end() -> None:
    bench = Bench()
    bench.candidate.output = "written at the end"
    with bench.run():
        assert bench.log == ["gang begins", "take AllReduce", "map native"]
        assert "def solution(" in bench.reference.source
        assert bench.candidate.timeout_s == 10.0
    assert bench.log[3:] == ["release", "gang ends", "heaps gone"]
    assert bench.feedback.output == "written at the end"


def test_a_workload_that_cannot_be_taken_leaves_no_gang() -> None:
    bench = Bench()
    bench.reference.fails["take"] = InfrastructureError("no memory left")
    with pytest.raises(InfrastructureError, match="no memory left"):
        bench.run()
    assert bench.log[-2:] == ["gang ends", "heaps gone"]


def test_a_reference_gang_that_fell_does_not_hide_what_was_found() -> None:
    bench = Bench()
    bench.reference.fails["release"] = InfrastructureError("the reference gang failed")
    with bench.run():
        pass
    assert bench.log[-3:] == ["release", "gang ends", "heaps gone"]


def test_no_input_is_used_twice() -> None:
    bench = Bench()
    with bench.run() as run:
        plans = [run.prepare(4, timed=False), run.prepare(3, timed=True), run.prepare(2, timed=True)]
    assert [len(plan.sets) for plan in plans] == [4, 3, 2]
    assert bench.reference.trials == [(0, 1, 2, 3), (4, 5, 6), (7, 8)]
    assert [planned.trial for plan in plans for planned in plan.sets] == list(range(9))
    assert bench.logged("make") == ["make 4 checked", "make 3 timed", "make 2 timed"]


def test_a_candidate_comes_to_its_gate_while_the_inputs_are_made() -> None:
    bench = Bench()
    with bench.run() as run:
        plan = run.prepare_armed(3, PLAIN)
        assert bench.logged("thaw", "bind", "arm", "make", "made") == [
            "make 3 timed",
            "thaw",
            "bind 3",
            "arm 3",
            "made",
        ]
        run.run(plan, range(3), PLAIN)
        other = run.prepare(2, timed=True)
        run.run(other, range(2), PLAIN)
    assert bench.logged("bind", "arm") == ["bind 3", "arm 3", "bind 2"], "once for each block"


def test_blocks_that_decide_a_time_share_nothing_that_is_drawn_together() -> None:
    """Who sees many numbers of a generator knows the next ones. Checked calls keep their numbers, by which the ranks
    are the root in turn, whatever was timed of the baseline before."""
    bench = Bench()
    with bench.run() as run:
        run.prepare(2, timed=True)
        run.prepare(5, timed=False)
        plans = [run.prepare_armed(calls, PLAIN) for calls in (3, CALLS_DRAWN_TOGETHER + 1)]
        plans.append(run.prepare(2, timed=True))
    batch = CALLS_DRAWN_TOGETHER
    assert bench.reference.trials[:2] == [(0, 1), (2, 3, 4, 5, 6)]
    assert [plan.sets[0].trial for plan in plans] == [batch, 2 * batch, 4 * batch]


def test_a_rank_that_falls_on_its_way_to_the_gate_is_a_failure_once_the_inputs_are_made() -> None:
    """An order without its reply would leave the reference gang of no further use."""
    bench = Bench()
    bench.candidate.fails["arm"] = GangFailed(Failure.RUNTIME_ERROR, 1, "rank 1 ended")
    with bench.run() as run, pytest.raises(Stopped, match="rank 1 ended"):
        run.prepare_armed(3, PLAIN)
    assert bench.log[bench.log.index("arm 3") :][:3] == ["arm 3", "kill", "made"]
    assert bench.feedback.failure is Failure.RUNTIME_ERROR


def workload() -> Workload:
    return Workload(PROBLEM, "tiny", 2, "bfloat16", "robust", b"key", 0, 0)


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Every third and fourth trial is larger."""
    return {"N": ax.N * (64 if draw.trial % 4 >= 2 else 1)}


GROWING = dataclasses.replace(PROBLEM, robust=dataclasses.replace(PROBLEM.robust, vary=vary))


def room_for(calls: int) -> int:
    """Bytes of a segment that holds just so many timed calls."""
    layout = lay_out(PROBLEM, builder().config)
    return workload().plan(range(calls), True, layout.scratch_bytes).end


@pytest.mark.parametrize(
    ("room", "requested", "given"), [(16, 16, 16), (15, 16, 15), (3, 16, 3), (1, 16, 1), (7, 7, 7)]
)
def test_a_block_that_does_not_fit_has_as_many_calls_as_do(room: int, requested: int, given: int) -> None:
    bench = Bench()
    with bench.run() as run:
        run.layout = dataclasses.replace(run.layout, segment_bytes=room_for(room))
        assert len(run.prepare(requested, timed=True).sets) == given
        run.prepare(1, timed=True)
    assert bench.reference.trials == [tuple(range(given)), (given,)], "trials that did not fit are drawn later"


def test_a_single_call_that_does_not_fit_is_a_fault_of_this_machine() -> None:
    bench = Bench()
    with bench.run() as run, pytest.raises(InfrastructureError, match=r"one call needs \d+ bytes a rank, the heap has"):
        run.layout = dataclasses.replace(run.layout, segment_bytes=room_for(1) - 1)
        run.prepare(2, timed=True)
    assert bench.reference.trials == []


def test_a_trial_that_does_not_fit_is_passed_over() -> None:
    """Sizes differ from trial to trial: one that is larger than all that the heap was laid out for ended it all."""
    bench = Bench(problem=GROWING)
    with bench.run() as run:
        layout = run.layout
        sets = [run.workload.plan([trial], False, layout.scratch_bytes).end for trial in range(6)]
        assert sets[0] == sets[1] < sets[2] == sets[3] and sets[4] == sets[0]
        run.layout = dataclasses.replace(layout, segment_bytes=sets[0] + (sets[0] - layout.scratch_bytes) // 2)
        plans = [run.prepare(2, timed=False) for _ in range(3)]
    assert [[planned.trial for planned in plan.sets] for plan in plans] == [[0, 1], [4, 5], [8, 9]]
    assert bench.reference.trials == [(0, 1), (4, 5), (8, 9)]


def test_calls_that_are_larger_than_the_places_of_those_before_lie_where_they_would_without_them() -> None:
    """Sizes differ from trial to trial, and the segment holds one call of this one."""
    bench = Bench(problem=GROWING)
    with bench.run() as run:
        earlier = run.prepare(2, timed=False)
        layout = run.layout
        larger = run.workload.plan([2], False, layout.scratch_bytes).end
        run.layout = dataclasses.replace(layout, segment_bytes=larger)
        plan = run.prepare(2, timed=False, earlier=earlier)
    assert [planned.trial for planned in plan.sets] == [2] and plan.end == larger
    assert all(planned.recurrence == NEW for planned in plan.sets)


def test_a_block_has_no_more_groups_than_a_kernel_can_be_passed() -> None:
    """RingAttentionPP has three ways to group 8 ranks: its checked calls did not make one block, so none was made."""
    bench = Bench(problem=find_problem("RingAttentionPP"), world_size=8)
    with bench.run() as run:
        plans = []
        while run.config.trials > sum(len(plan.sets) for plan in plans):
            plans.append(run.prepare(run.config.trials, timed=False))
    assert all(len(plan.partitions) <= MAX_GROUPS for plan in plans)
    assert max(len(plan.partitions) for plan in plans) == MAX_GROUPS
    assert len({partition for plan in plans for partition in plan.partitions}) > MAX_GROUPS


def test_a_candidate_is_loaded_with_all_that_it_needs() -> None:
    bench = Bench(memory_bytes=123 << 20)
    with bench.run() as run:
        run.load()
    job = bench.candidate.job
    assert job is not None and bench.candidate.source == bench.feedback.source.text
    assert (job.problem, job.dialect, job.memory_bytes) == (PROBLEM, "native", 123 << 20)
    assert job.scratch_bytes == run.layout.scratch_bytes


def test_a_block_is_bound_and_its_inputs_are_staged_before_it_runs() -> None:
    bench = Bench()
    with bench.run() as run:
        plan = run.prepare(3, timed=True)
        finished = run.run(plan, range(3), PLAIN)
        report = run.compare(finished.done)
    assert bench.log[3:] == ["make 3 timed", "thaw", "bind 3", "stage StageInputs", "candidate 3 in 10 s", "end block",
                             "compare 3", "release", "gang ends", "heaps gone"]  # fmt: skip
    assert (finished.nanoseconds, finished.late) == (150_000, [])
    assert (report.passed, report.trials, report.outputs_compared) == (True, 3, 6)


@pytest.mark.parametrize(
    ("timeout_s", "baseline_s", "more_s", "limit_s"),
    [(10.0, 0.001, 0.0, 10.0), (10.0, 1.0, 0.0, 30.0), (0.5, 0.001, 0.0, 0.5), (10.0, 0.0, 20.0, 30.0)],
)
def test_a_deadline_is_longer_where_the_baseline_takes_long(
    timeout_s: float, baseline_s: float, more_s: float, limit_s: float
) -> None:
    bench = Bench(timeout_s=timeout_s)
    with bench.run() as run:
        run.allow(1e9 * baseline_s, more_s)
        assert bench.candidate.timeout_s == pytest.approx(limit_s)


STEPS = ["load", "thaw", "bind", "candidate", "profile", "run on"]


@pytest.mark.parametrize("step", STEPS)
def test_a_fallen_gang_is_the_failure_with_the_tail_of_its_output(step: str) -> None:
    bench = Bench()
    bench.candidate.output = "\n" + "x" * 3000 + "the last words\n"
    bench.candidate.fails[step] = GangFailed(Failure.OUT_OF_MEMORY, 1, "rank 1 was killed by the kernel")
    with pytest.raises(Stopped), bench.run() as run:
        plan = run.prepare(1, timed=True)
        run.load()
        run.run(plan, [0], PLAIN)
        run.profile(plan, [0], None)
        run.go_on(0.1)
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank, found.integrity) == (Failure.OUT_OF_MEMORY, 1, ())
    head, _, tail = found.message.partition("\nlast output:\n")
    assert head == "rank 1 was killed by the kernel"
    assert len(tail) == 2000 and tail.endswith("xthe last words")
    assert bench.log[-3:] == ["release", "gang ends", "heaps gone"]


def test_a_gang_that_wrote_nothing_has_no_last_output() -> None:
    bench = Bench()
    bench.candidate.fails["load"] = GangFailed(Failure.DEADLOCK, None, "no end after 10 s")
    with pytest.raises(Stopped), bench.run() as run:
        run.load()
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank, found.message) == (Failure.DEADLOCK, None, "no end after 10 s")


def test_a_rank_that_breaks_the_protocol_is_a_finding() -> None:
    bench = Bench()
    bench.candidate.fails["candidate"] = GangFailed(Failure.INTEGRITY, 0, "rank 0 sent something out of turn")
    with pytest.raises(Stopped), bench.run() as run:
        run.run(run.prepare(1, timed=False), [0], PLAIN)
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank) == (Failure.INTEGRITY, 0)
    (finding,) = found.integrity
    assert (finding.code, finding.detail) == ("harness_tampering", "rank 0 sent something out of turn")


@pytest.mark.parametrize(("include", "calls"), [("", True), ("#include <nvshmem.h>\n", None)])
def test_what_uses_the_network_calls_a_library_unless_it_is_started_for_it(
    monkeypatch: pytest.MonkeyPatch, include: str, calls: bool | None
) -> None:
    bench = Bench(source=f"{include}{KERNEL}")
    sent = itertools.count()
    monkeypatch.setattr(bench.candidate, "loopback_bytes", lambda: next(sent))
    with bench.run() as run:
        run.run(run.prepare(1, timed=False), [0], PLAIN)
    assert bench.feedback.calls_torch_distributed is calls


def test_a_fault_of_the_reference_gang_is_no_failure_of_the_candidate() -> None:
    bench = Bench()
    bench.reference.fails["stage"] = InfrastructureError("the reference gang failed")
    with pytest.raises(InfrastructureError), bench.run() as run:
        run.run(run.prepare(1, timed=False), [0], PLAIN)
    assert not bench.feedback.failed


def test_a_block_ends_for_the_reference_gang_though_the_candidate_falls() -> None:
    bench = Bench()
    bench.candidate.fails["candidate"] = GangFailed(Failure.RUNTIME_ERROR, 1, "rank 1 was killed by SIGSEGV")
    with pytest.raises(Stopped), bench.run() as run:
        run.run(run.prepare(1, timed=True), [0], PLAIN)
    assert bench.logged("stage", "end block") == ["stage StageInputs", "end block"]


def test_calls_that_did_not_wait_for_their_arguments_are_tampering() -> None:
    """Its rank program was changed: the unchanged one waits."""
    bench = Bench()
    bench.reference.ended = [[BlockEnded(True, ()), BlockEnded(False, ())]]
    with pytest.raises(Stopped), bench.run() as run:
        run.run(run.prepare(1, timed=True), [0], PLAIN)
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank) == (Failure.INTEGRITY, 1)
    (finding,) = found.integrity
    assert (finding.code, finding.detail) == ("harness_tampering", "rank 1 went on without waiting for its arguments")


def test_late_outputs_are_reported_for_each_rank_the_earliest_call_first() -> None:
    bench = Bench()
    of_rank_0 = BlockEnded(True, (LateOutput(1, "out"),))
    of_rank_1 = BlockEnded(True, (LateOutput(0, "out"), LateOutput(1, "out")))
    bench.reference.ended = [[of_rank_0, of_rank_1]]
    with bench.run() as run:
        finished = run.run(run.prepare(2, timed=True), [0, 1], PLAIN)
    assert [(output.call, rank) for rank, output in finished.late] == [(0, 1), (1, 0), (1, 1)]


def test_a_request_before_the_outputs_are_there_is_a_finding() -> None:
    """The rank's program asks for its next call at the end of its stream, after all outputs."""
    bench = Bench()
    early = (LateOutput(3, "out"),)
    bench.reference.ended = [[BlockEnded(True, ()), BlockEnded(True, (), early=early)]]
    with pytest.raises(Stopped), bench.run() as run:
        run.run(run.prepare(4, timed=True), range(4), PLAIN)
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank) == (Failure.INTEGRITY, 1)
    (finding,) = found.integrity
    assert finding.code == "late_output"
    assert finding.detail == "rank 1 asked for its next call before out of call 3 was there"


def test_outputs_that_come_after_the_handover_too_are_left_to_be_named_a_race() -> None:
    bench = Bench()
    late = (LateOutput(3, "out"),)
    bench.reference.ended = [[BlockEnded(True, late), BlockEnded(True, (), early=late)]]
    with bench.run() as run:
        finished = run.run(run.prepare(4, timed=True), range(4), PLAIN)
    assert finished.late == [(0, LateOutput(3, "out"))] and not bench.feedback.build().integrity


def test_inputs_of_an_earlier_block_can_be_had_again() -> None:
    bench = Bench()
    with bench.run() as run:
        run.prepare_again(run.prepare(3, timed=False), timed=False)
        run.prepare(1, timed=True)
    assert bench.reference.trials == [(0, 1, 2), (0, 1, 2), (3,)]
