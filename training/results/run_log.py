"""The log of a training run: figures for each problem and step, best kernels, every submission, times by phase."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import get_args

from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.rewards.returns import Values
from pkb_gym.training.evaluation.async_evaluator import Fault
from pkb_gym.training.processes.phases import PHASES, GpuSampler, Lap
from pkb_gym.training.results.archive import (
    ARCHIVE,
    PHASE_LOG,
    ROLLOUTS,
    Archive,
    Kernel,
    LogLine,
    StepLog,
    submission_record,
    unread_record,
)
from pkb_gym.training.rollout.episodes import RolloutEpisode

REQUEST = ("problem", "language", "device", "size", "dtype", "world_size", "seed", "source_hash")
"""Columns that make two submissions equal requests."""


@dataclass(frozen=True)
class EpisodeRecord:
    """The record of an episode that ranks exchange.

    Attributes:
        problem: Problem of the episode.
        values: Values of its messages, as in `RolloutEpisode.values`.
        submitted: Flags of its messages, as in `RolloutEpisode.submitted`.
        episode_value: Value of the episode, as in `Episode`.
        submissions: Lines of `rollouts.jsonl`, without the number of the sample.
        unread: Lines for replies in which no submission could be read, of the same form.
    """

    problem: str
    values: Values
    submitted: Sequence[bool]
    episode_value: float | None
    submissions: tuple[LogLine, ...]
    unread: tuple[LogLine, ...] = ()

    @classmethod
    def of(cls, episode: RolloutEpisode, step: int) -> EpisodeRecord:
        """The record of an episode that ended."""
        lines = tuple(submission_record(step, episode, submission) for submission in episode.submissions)
        unread = tuple(unread_record(step, episode, reply) for reply in episode.unread_replies)
        return cls(
            episode.task.problem.name, episode.values(), episode.submitted(), episode.episode_value, lines, unread
        )

    @property
    def speedup(self) -> float | None:
        """The speedup of its fastest right kernel; None without one."""
        found = [float(str(line["speedup"])) for line in self.submissions if line["is_right"] and line["speedup"]]
        return max(found, default=None)

    @property
    def is_solved(self) -> bool:
        """Whether any submission was right."""
        return any(line["is_right"] for line in self.submissions)


def episode_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Figures of a batch: for each problem the mean reward, the share solved and the median speedup of the right ones.

    Episodes in which the evaluator failed are counted, and left out of everything else.
    """
    metrics: dict[str, float] = {}
    by_problem: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in records:
        if record.episode_value is not None:
            by_problem[record.problem].append(record)
    for problem, valid in sorted(by_problem.items()):
        metrics[f"reward/{problem}"] = fmean(
            record.episode_value for record in valid if record.episode_value is not None
        )
        metrics[f"correct/{problem}"] = fmean(record.is_solved for record in valid)
        if speedups := [record.speedup for record in valid if record.speedup is not None]:
            metrics[f"speedup/{problem}"] = median(speedups)
    valid = [record for group in by_problem.values() for record in group]
    if valid:
        metrics["correct"] = fmean(record.is_solved for record in valid)
    if speedups := [record.speedup for record in valid if record.speedup is not None]:
        metrics["speedup"] = median(speedups)
    lines = [line for record in records for line in record.submissions]
    faults = Counter(line["fault"] for line in lines)
    new = new_requests(lines)
    return metrics | {
        "submissions": float(len(lines)),
        "evaluations": float(len(new)),
        "duplicates": float(len(lines) - len(new)),
        **{f"faults/{fault}": float(faults[fault]) for fault in get_args(Fault)},
        "unread_replies": float(sum(len(record.unread) for record in records)),
        "episodes_without_submission": float(sum(not record.submissions for record in records)),
    }


def new_requests(lines: Iterable[LogLine]) -> list[LogLine]:
    """A line of each request that was not made before, neither in this run nor by another rank in the same batch."""
    first: dict[tuple[object, ...], LogLine] = {}
    for line in lines:
        if not line["is_duplicate"]:
            first.setdefault(tuple(line[name] for name in REQUEST), line)
    return list(first.values())


@dataclass
class Evaluated:
    """Evaluations since the last step was logged.

    Attributes:
        count: Number of new requests.
        stages_s: Time of each of their stages, in seconds.
    """

    count: int = 0
    stages_s: Counter[str] = field(default_factory=Counter)

    def add(self, lines: Iterable[LogLine]) -> None:
        """Enters the submissions of a batch."""
        for line in new_requests(lines):
            self.count += 1
            self.stages_s.update(line["durations_s"])  # type: ignore[call-overload]  # stage -> seconds


class RunLog:
    """Writes what a run reports into its folder; only rank 0 has one that writes.

    Args:
        folder: Folder of the run.
        keep: Maximum number of kernels of each problem, language and world size in the archive.
        writes: Whether this rank writes.

    Attributes:
        archive: Best kernels so far.
        submissions: Number of submissions of the run so far, repeated ones and those before it resumed included; 0 on
            ranks that do not write.
    """

    def __init__(self, folder: Path, keep: int = 8, *, writes: bool = True) -> None:
        self._folder, self._keep, self._writes = folder, keep, writes
        self.archive = Archive(keep)
        self.submissions = 0
        self._rollouts, self._phases = StepLog(folder / ROLLOUTS), StepLog(folder / PHASE_LOG)
        self._evaluated = Evaluated()
        self._sampler = GpuSampler() if writes else None

    def begin(self, step: int, checkpoint: Path | None) -> None:
        """Called when a run begins, or resumes at a step: lines of that step and later ones are dropped.

        Raises:
            ConfigError: the checkpoint's archive cannot be read.
        """
        if not self._writes:
            return
        before = self._rollouts.forget_from(step)
        self.submissions = sum(line["failure"] != NO_SUBMISSION for line in before)
        self._phases.forget_from(step)
        kept = None if checkpoint is None else checkpoint / ARCHIVE
        self.archive = Archive.read(kept, self._keep) if kept is not None and kept.exists() else Archive(self._keep)

    def save(self, checkpoint: Path) -> None:
        """Puts into a checkpoint what `begin` needs."""
        if self._writes:
            self.archive.write(checkpoint / ARCHIVE)

    def add_episodes(self, records: Sequence[EpisodeRecord]) -> None:
        """Logs a batch of all ranks, in order of ranks."""
        lines = [{"sample": sample, **line} for sample, record in enumerate(records) for line in record.submissions]
        self._evaluated.add(lines)
        if not self._writes:
            return
        self.submissions += len(lines)
        unread = [{"sample": sample, **line} for sample, record in enumerate(records) for line in record.unread]
        self._rollouts.append([*lines, *unread])
        for line in lines:
            if line["is_right"] and line["reward"] is not None:
                self.archive.add(Kernel(**{name: line[name] for name in Kernel.__annotations__}))  # type: ignore[arg-type]
        self.archive.write(self._folder / ARCHIVE)

    def add_step(self, step: int, laps: Sequence[Lap]) -> dict[str, float]:
        """Logs where a step's time went.

        Args:
            step: Index of the step, from 0.
            laps: Lap times of all ranks.

        Returns:
            The same as metrics: shares of phases, evaluations per minute, how busy GPUs were.
        """
        evaluated, self._evaluated = self._evaluated, Evaluated()
        wall_s = fmean(lap.wall_s for lap in laps)
        phases_s = {name: fmean(lap.phases_s[name] for lap in laps) for name in PHASES}
        per_minute = 60 * evaluated.count / wall_s
        busy = self._sampler.means() if self._sampler is not None else ()
        if self._writes:
            self._phases.append(
                [
                    {
                        "step": step,
                        "wall_s": wall_s,
                        "phases_s": phases_s,
                        "stages_s": dict(evaluated.stages_s),
                        "evaluations": evaluated.count,
                        "evaluations_per_minute": per_minute,
                        "gpu_utilisations": busy,
                    }
                ]
            )
        metrics = {f"phase/{name}": spent_s / wall_s for name, spent_s in phases_s.items()}
        metrics |= {f"stage/{name}_s": spent_s for name, spent_s in evaluated.stages_s.items()}
        metrics["evaluations_per_minute"] = per_minute
        if busy:
            metrics["gpu_utilisation"] = fmean(busy)
        return metrics

    def close(self) -> None:
        """Ends the thread that samples GPUs."""
        if self._sampler is not None:
            self._sampler.close()
