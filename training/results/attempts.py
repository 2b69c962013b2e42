"""Episodes of an evaluated policy as attempts, and attempts as the rows that summaries are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pkb_gym.engine.records.attempt import Attempt, TokenCounts
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.envs.attempts import judged_attempt
from pkb_gym.metrics.shared_runs import near_copies
from pkb_gym.rewards.baseline import speedup_over
from pkb_gym.rewards.reward import is_right
from pkb_gym.training.inputs.rows import Row, read_jsonl
from pkb_gym.training.rollout.episodes import RolloutEpisode, Submission


def attempts_of(sample: int, episode: RolloutEpisode, reward_name: str, agent: str | None = None) -> list[Attempt]:
    """An episode in order: one attempt for each submission, and for each reply in which none could be read.

    Args:
        sample: Index of the episode on its prompt.
        episode: Finished episode.
        reward_name: Name of the submissions' reward.
        agent: Name of the player, as in tables.
    """
    submitted = [_submitted(sample, episode, submission, reward_name, agent) for submission in episode.submissions]
    unread = [
        Attempt(
            problem=episode.task.problem.name,
            agent=agent,
            sample=sample,
            turn=reply,
            requested=episode.task.config,
            reply=episode.replies[reply].text,
            reward=episode.empty_value,
            reward_name=reward_name,
            tokens=_tokens(episode, reply),
        )
        for reply in episode.unread_replies
    ]
    return sorted([*submitted, *unread], key=lambda attempt: attempt.turn)


def _submitted(
    sample: int, episode: RolloutEpisode, submission: Submission, reward_name: str, agent: str | None
) -> Attempt:
    reply = submission.reply
    attempt = Attempt(
        problem=episode.task.problem.name,
        agent=agent,
        sample=sample,
        turn=submission.message if reply is None else reply,
        requested=episode.task.config,
        reply=None if reply is None else episode.replies[reply].text,
        reward_name=reward_name,
        tokens=None if reply is None else _tokens(episode, reply),
    )
    return judged_attempt(attempt, submission.turn, submission.verdict.waited_s)


def _tokens(episode: RolloutEpisode, reply: int) -> TokenCounts:
    found = episode.replies[reply]
    return TokenCounts(prompt=found.prompt_tokens, completion=found.tokens)


def row_of(attempt: Attempt) -> Row:
    """The columns of an attempt that summaries and `rft.py` read, as those of `rollouts.jsonl`."""
    requested, feedback = attempt.requested, attempt.feedback
    source = attempt.source
    timing = None if feedback is None else feedback.timing
    return {
        "problem": attempt.problem,
        "language": requested.language,
        "size": requested.size if isinstance(requested.size, str | None) else json.dumps(requested.size),
        "dtype": requested.dtype,
        "world_size": requested.world_size,
        "seed": requested.seed,
        "sample": attempt.sample,
        "turn": attempt.turn,
        "source": source,
        "source_hash": None if source is None else source_sha256(source),
        "stage": None if feedback is None or feedback.stage is None else feedback.stage.value,
        "failure": None if attempt.verdict == "passed" else attempt.verdict,
        "is_right": feedback is not None and is_right(feedback),
        "reward": attempt.reward,
        "speedup": None if feedback is None else feedback.speedup,
        "captured_speedup": None if timing is None else speedup_over(timing, "captured", "point"),
    }


def with_near_copies(rows: Sequence[Row], known: Sequence[str]) -> list[Row]:
    """The rows with a column `near_copy`: whether a right source is a near copy of a known one; None of others."""
    right = [number for number, row in enumerate(rows) if row["is_right"] and row["source"] is not None]
    found = dict(zip(right, near_copies([rows[number]["source"] for number in right], known), strict=True))
    return [row | {"near_copy": found.get(number)} for number, row in enumerate(rows)]


def read_rows(path: Path) -> list[Row]:
    """Rows of `results.jsonl` of `evaluate_policy.py`, or of `rollouts.jsonl` of `grpo.py`.

    Raises:
        ConfigError: the file cannot be read, or a line is neither.
    """
    rows = read_jsonl(path)
    return (
        [row_of(attempt) for attempt in read_attempts(path)]
        if rows and rows[0].keys() & {"requested", "asked"}
        else rows
    )
