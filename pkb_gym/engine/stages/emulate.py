"""Stage check of emulated ranks: the same inputs, rules and call contract, under orders of execution that are chosen.

All ranks are together first: what is wrong then is wrong. In the blocks after it the scheduler has ranks arrive late,
depart early or run ahead, or stores take effect late, so that a missing wait or release shows; a kernel that is right
together and wrong then has a race.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pkb_gym.engine.compare.check import joined
from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.gangs.candidate_gang import BlockSetting
from pkb_gym.engine.gangs.emulated_gang import TOGETHER, EmulatedGang
from pkb_gym.engine.records.check_report import CheckReport, Race
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.emulation import DetectedError, Emulation, LinkTraffic
from pkb_gym.engine.records.feedback import Failure, Stage
from pkb_gym.engine.reference.orders import CheckedCall, ConductCalls
from pkb_gym.engine.stages.block_staging import BlockStaging
from pkb_gym.engine.stages.candidate_run import CandidateRun, FinishedBlock
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.machine_sharing import work_beside_others
from pkb_gym.engine.stages.mismatch import FAILURES
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.stages.race import late_output
from pkb_gym.engine.stages.recurring_calls import describe, first_return
from pkb_gym.engine.wire.emulated_orders import DetectorFinding, PeerBytes, Schedule

CALLS_TOGETHER = 2
CALLS_OF_SCHEDULE = 3
"""Calls of a block: a rank that waits for nobody is then two calls ahead of another."""

MAX_LINES = 4
"""Findings that a message lists, at most."""


def judge_emulated(run: CandidateRun, gang: EmulatedGang, report: Progress) -> None:
    """Runs the stages that were asked for; there is none after the check.

    Args:
        run: Run of the candidate.
        gang: Gang that the candidate runs on.
        report: Callback that receives the stage's name.

    Raises:
        Stopped: the candidate failed; the feedback has the reason.
        InfrastructureError: this machine failed.
    """
    feedback = run.feedback
    with feedback.waiting_for(work_beside_others(report)), feedback.stage(Stage.CHECK, report):
        check_emulated(run, gang)


def check_emulated(run: CandidateRun, gang: EmulatedGang) -> None:
    """Loads the candidate and compares its outputs under all schedules; arguments and errors as `judge_emulated`."""
    _EmulatedCheck(run, gang).check()


def schedules(config: ResolvedConfig) -> Iterator[tuple[Schedule, int]]:
    """The orders of execution of an evaluation, and the calls under each: `config.trials` calls in all.

    They follow from the configuration's seed and turn.
    """
    import rank_emulator

    left, most = config.trials, CALLS_TOGETHER
    for order in rank_emulator.schedules(f"schedules {config.seed} {config.turn}", config.world_size):
        if not left:
            return
        calls = min(most, left)
        yield Schedule(order.policy, order.seed), calls
        left, most = left - calls, CALLS_OF_SCHEDULE


class _EmulatedCheck:
    """The checked calls of one candidate."""

    def __init__(self, run: CandidateRun, gang: EmulatedGang) -> None:
        self._run, self._gang = run, gang
        self._earlier: CheckReport | None = None
        self._plan: BlockPlan | None = None
        self._schedules: list[str] = []
        self._calls = 0

    def check(self) -> None:
        """Loads the candidate and compares its outputs."""
        for schedule, calls in schedules(self._run.config):
            while calls:
                calls -= self._check_block(schedule, calls)

    def _check_block(self, schedule: Schedule, wanted: int) -> int:
        """Checks as many of the calls as fit into the heap together; returns their number."""
        run = self._run
        plan = run.prepare(wanted, timed=False, earlier=self._plan)
        self._plan = plan
        if self._earlier is None:
            run.load()
        report, finished = self._call(plan, schedule)
        run.feedback.complete(Stage.RUN)
        run.feedback.check = report if self._earlier is None else joined(self._earlier, report)
        self._earlier = run.feedback.check
        if findings := [finding for finding in self._findings() if self._fails(finding)]:
            raise self._found(findings)
        if not report.passed or finished.late:
            raise self._wrong(plan, schedule, report, finished)
        return len(plan.sets)

    def _call(self, plan: BlockPlan, schedule: Schedule) -> tuple[CheckReport, FinishedBlock]:
        """One block, whose inputs are there."""
        run, calls = self._run, len(plan.sets)
        run.reference.run(calls, run.dialect)
        self._gang.timeout_s = run.config.timeout_s
        try:
            finished = run.run(plan, range(calls), staging(run.config.world_size, calls, schedule))
        finally:
            self._note(schedule, calls)
        return run.compare(finished.done), finished

    def _note(self, schedule: Schedule, calls: int) -> None:
        """Adds a block to the report."""
        done = self._gang.done
        self._schedules.append(schedule.policy if schedule == TOGETHER else f"{schedule.policy}, {schedule.seed}")
        self._calls += calls
        if done is None:
            return
        self._run.feedback.emulation = Emulation(
            schedules=tuple(self._schedules),
            calls=self._calls,
            warp_instructions=done.instructions,
            findings=tuple(map(_detected, done.findings)),
            advice=done.advice,
            links=_traffic(done.links, self._calls),
        )

    def _findings(self) -> Sequence[DetectorFinding]:
        return () if self._gang.done is None else self._gang.done.findings

    def _fails(self, finding: DetectorFinding) -> bool:
        """Whether a finding is a failure whatever the outputs are."""
        if finding.finding_class == "weak_order":
            return self._run.config.race_check == "strict"
        return finding.finding_class != "benign"

    def _found(self, findings: Sequence[DetectorFinding]) -> Stopped:
        """The failure of these findings."""
        feedback, first = self._run.feedback, findings[0]
        races = [finding for finding in findings if finding.kind == "race"]
        text = "\n".join(map(str, map(_detected, findings[:MAX_LINES])))
        if not races:
            return feedback.stop(Failure.RUNTIME_ERROR, text, first.rank)
        feedback.race = unordered(races[0])
        return feedback.stop(Failure.RACE, text, races[0].rank)

    def _wrong(self, plan: BlockPlan, schedule: Schedule, report: CheckReport, finished: FinishedBlock) -> Stopped:
        """The failure of a call with wrong outputs."""
        run = self._run
        run.observer.outputs_differ(plan, report)
        race = late_output(finished)
        if race is None:
            worst = report.mismatches[0]
            if worst.reason != "values" or schedule == TOGETHER or not self._is_right_together(plan):
                again = first_return(plan, report) if worst.reason == "values" else None
                message = str(worst) if again is None else f"{worst}\n{describe(again)}"
                return run.feedback.stop(FAILURES[worst.reason], message, worst.rank)
            first = min(report.mismatches, key=lambda mismatch: mismatch.trial)
            evidence = f"{first}; under schedule {self._schedules[-1]}"
            weak = [finding for finding in self._findings() if finding.finding_class == "weak_order"]
            if weak:
                lines = "\n".join([evidence, *(finding.text for finding in weak[:MAX_LINES])])
                race = Race(
                    kind="unordered", rank=first.rank, owner=weak[0].owner, tensor=weak[0].tensor, evidence=lines
                )
            else:
                race = Race(kind="unknown", rank=first.rank, evidence=evidence)
        run.feedback.race = race
        advice = (
            ""
            if run.config.race_check != "off"
            else "\nthe detector of races (race_check='on', --race on) names the two accesses and their lines"
        )
        rank = race.rank if race.owner is None else race.owner
        return run.feedback.stop(Failure.RACE, f"{race}\n{race.evidence}{advice}", rank)

    def _is_right_together(self, plan: BlockPlan) -> bool:
        """The same inputs once more, all ranks beginning and ending each call together."""
        under = self._schedules[-1]
        self._run.prepare_again(plan, timed=False)
        report, finished = self._call(plan, TOGETHER)
        self._schedules[-1] = under
        return report.passed and not finished.late


def staging(world_size: int, calls: int, schedule: Schedule) -> BlockStaging:
    """Whole arguments handed over call by call, when the emulator's scheduler reaches it."""
    order = ConductCalls((CheckedCall(together=False),) * calls)
    return BlockStaging((order,) * world_size, BlockSetting("waiting", schedule=schedule))


def unordered(finding: DetectorFinding) -> Race:
    """The race of a finding."""
    return Race(kind="unordered", rank=finding.rank, owner=finding.owner, tensor=finding.tensor, evidence=finding.text)


def _detected(finding: DetectorFinding) -> DetectedError:
    """A finding as the record holds it."""
    return DetectedError(
        kind=finding.kind,
        finding_class=finding.finding_class,
        first=finding.first,
        second=finding.second,
        text=finding.text,
        exposure=finding.exposure,
    )


def _traffic(links: Sequence[PeerBytes], calls: int) -> tuple[LinkTraffic, ...]:
    totals: dict[tuple[int, int], tuple[int, int]] = {}
    for link in links:
        read, written = totals.get((link.rank, link.owner), (0, 0))
        totals[link.rank, link.owner] = read + link.read_bytes, written + link.written_bytes
    return tuple(
        LinkTraffic(rank=rank, owner=owner, read_bytes_per_call=read / calls, written_bytes_per_call=written / calls)
        for (rank, owner), (read, written) in sorted(totals.items())
        if rank != owner
    )
