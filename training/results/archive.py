"""The archive of a run: the best kernels of each problem, and every submission, as files that survive a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt import NO_SUBMISSION
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.rewards.reward import is_right
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.rollout.episodes import RolloutEpisode, Submission

ARCHIVE, ROLLOUTS, PHASE_LOG = "archive.jsonl", "rollouts.jsonl", "phases.jsonl"
"""Names of the files in a run's folder."""

LogLine: TypeAlias = dict[str, object]
"""A line of a JSONL file."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of the archive.

    Attributes:
        problem, language, world_size: Problem, language and number of ranks of the kernel.
        reward: Reward of its submission.
        speedup: Speedup over the baseline; None where it was not timed.
        source_hash: SHA-256 of its text.
        step: Step of the run that submitted it first.
        source: Source text.
    """

    problem: str
    language: str
    world_size: int
    reward: float
    speedup: float | None
    source_hash: str
    step: int
    source: str


class Archive:
    """The best distinct kernels of each problem, language and world size.

    Args:
        keep: Maximum number of kernels of each kind.
    """

    def __init__(self, keep: int = 8) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self._keep = keep
        self._kernels: dict[tuple[str, str, int], list[Kernel]] = {}

    def add(self, kernel: Kernel) -> None:
        """Enters a kernel, if it is among the best; of equal sources the one that was submitted first stays."""
        key = (kernel.problem, kernel.language, kernel.world_size)
        kept = self._kernels.setdefault(key, [])
        if all(other.source_hash != kernel.source_hash for other in kept):
            kept.append(kernel)
            kept.sort(key=lambda one: -one.reward)  # stable: of equal ones the earlier stays
            del kept[self._keep :]

    def kernels(self, problem: str | None = None) -> list[Kernel]:
        """The kernels of a problem, or of all; of each kind the best first."""
        return [kernel for key in sorted(self._kernels) for kernel in self._kernels[key] if problem in (None, key[0])]

    def write(self, path: Path) -> None:
        """Writes one kernel a line; the file is whole or absent at any moment."""
        write_atomically(path, "".join(json.dumps(asdict(kernel)) + "\n" for kernel in self.kernels()))

    @classmethod
    def read(cls, path: Path, keep: int = 8) -> Archive:
        """Reads what `write` wrote.

        Raises:
            ConfigError: the file cannot be read.
        """
        archive = cls(keep)
        for number, line in enumerate(read_jsonl(path), start=1):
            if (missing := Kernel.__annotations__.keys() ^ line.keys()) or not _is_kernel(line):
                what = f"the columns {', '.join(sorted(missing))}" if missing else "the types of its columns"
                raise ConfigError(f"{path}, line {number}, is no kernel of an archive: it differs in {what}")
            archive.add(Kernel(**line))
        return archive


def _is_kernel(line: LogLine) -> bool:
    texts = all(isinstance(line[name], str) for name in ("problem", "language", "source_hash", "source"))
    numbers = all(isinstance(line[name], int) for name in ("world_size", "step"))
    return texts and numbers and isinstance(line["reward"], int | float) and isinstance(line["speedup"], _SPEEDUP)


_SPEEDUP = (int, float, type(None))


def submission_record(step: int, episode: RolloutEpisode, submission: Submission) -> LogLine:
    """The line of `rollouts.jsonl` of one submission; `sample`, its rollout's number in the batch, is added later.

    Args:
        step: Step of the run, in which the policy wrote it.
        episode: Episode of the submission.
        submission: Submission with its result.
    """
    turn, verdict = submission.turn, submission.verdict
    feedback = turn.feedback
    return {
        **_task_columns(step, episode, episode.task.config if feedback is None else feedback.config),
        "turn": submission.message,
        "source": turn.source,
        "source_hash": source_sha256(turn.source),
        "stage": None if feedback is None or feedback.stage is None else feedback.stage.value,
        "failure": None if feedback is None or feedback.failure is None else feedback.failure.value,
        "fault": verdict.fault,
        "is_right": feedback is not None and is_right(feedback),
        "reward": turn.value,
        "speedup": None if feedback is None else feedback.speedup,
        "answer": submission.answer,
        "reply": None if submission.reply is None else episode.replies[submission.reply].text,
        "is_duplicate": verdict.is_duplicate,
        "waited_s": verdict.waited_s,
        "durations_s": {} if feedback is None else feedback.durations_s,
        "feedback": None if feedback is None else feedback.model_dump(mode="json"),
    }


def unread_record(step: int, episode: RolloutEpisode, reply: int) -> LogLine:
    """The line of `rollouts.jsonl` of a reply in which no submission could be read.

    Args:
        step: Step of the run.
        episode: Episode of the reply.
        reply: Index of the reply.
    """
    return {
        **_task_columns(step, episode, episode.task.config),
        "turn": reply,
        **dict.fromkeys(("source", "source_hash", "stage", "fault", "speedup", "answer", "feedback")),
        "failure": NO_SUBMISSION,
        "is_right": False,
        "reward": episode.empty_value,
        "reply": episode.replies[reply].text,
        "is_duplicate": False,
        "waited_s": 0.0,
        "durations_s": {},
    }


def _task_columns(step: int, episode: RolloutEpisode, found: EvalConfig | ResolvedConfig) -> LogLine:
    """The columns of a line on its task, with the configuration as far as it is known."""
    return {
        "step": step,
        "problem": episode.task.problem.name,
        "language": found.language,
        "device": found.device,
        "size": found.size if isinstance(found.size, str | None) else json.dumps(found.size),
        "dtype": found.dtype,
        "world_size": found.world_size,
        "seed": episode.task.config.seed,
        "style": episode.task.style,
    }


class StepLog:
    """A JSONL file whose every line has the `step` that it belongs to; only one process writes it.

    Args:
        path: Path of the file, created at the first write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, records: Iterable[Mapping[str, object]]) -> None:
        """Adds lines, and sees that they are on the disk."""
        lines = "".join(json.dumps(record) + "\n" for record in records)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def forget_from(self, step: int) -> list[LogLine]:
        """Drops the lines of that step and later ones: a run that resumes there will write them again.

        Returns:
            The lines that are left.
        """
        if not self._path.exists():
            return []
        kept = [record for record in read_jsonl(self._path) if record["step"] < step]
        write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in kept))
        return kept
