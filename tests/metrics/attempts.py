"""Attempts for tests of figures, pages and commands."""

from __future__ import annotations

from collections.abc import Mapping

from pkb_gym.engine.records.attempt import Attempt, TokenCounts, request_key
from pkb_gym.engine.records.attempt_file import AttemptFile
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Profile
from pkb_gym.engine.support.source_digest import source_sha256
from pkb_gym.rewards import find_reward
from pkb_gym.rewards.examples import failed, timed

DEFAULT = find_reward("default")


def attempt(
    problem: str = "AllReduce",
    agent: str | None = "a",
    sample: int = 0,
    turn: int = 0,
    *,
    speedup: float | None = None,
    low: float | None = None,
    captured_us: float | None = None,
    registered_us: float | None = None,
    failure: str = "output_mismatch",
    source: str | None = None,
    tokens: int | None = None,
    cost_usd: float | None = None,
    mechanisms: tuple[str, ...] | None = None,
    library: bool | None = None,
    requested: Mapping[str, object] | None = None,
    feedback: Mapping[str, object] | None = None,
    **fields: object,
) -> Attempt:
    """A right and timed submission where there is a speedup, else one that failed; `no_submission` without a source."""
    text = f"// {problem} of {agent}, sample {sample}, turn {turn}\nint x;\n" if source is None else source
    counts = None if tokens is None else TokenCounts(prompt=10 * tokens, completion=tokens)
    common = {
        "problem": problem,
        "agent": agent,
        "sample": sample,
        "turn": turn,
        "requested": EvalConfig(**(requested or {})),
        "tokens": counts,
        "cost_usd": cost_usd,
    }
    if speedup is None and failure == "no_submission":
        return Attempt(**(common | fields))
    found = (
        failed(failure)
        if speedup is None
        else timed(
            baseline_us=100.0,
            speedup=speedup,
            speedup_low=low or speedup,
            captured_us=captured_us,
            registered_us=registered_us,
        )
    )
    update = {
        "problem": problem,
        "source_sha256": source_sha256(text),
        "calls_torch_distributed": library,
        "profile": None if mechanisms is None else Profile(ranks=(), mechanisms=mechanisms),
    }
    found = found.model_copy(update=update | dict(feedback or {}))
    submitted = {
        "source": text,
        "feedback": found,
        "request_key": request_key(problem, text, found),
        "reward": DEFAULT(found),
        "reward_name": "default",
        "duration_s": 0.5,
    }
    return Attempt(**(common | submitted | fields))


def write(path, attempts):
    """A file of attempts."""
    with AttemptFile(path, writer="test", option="--output") as file:
        for one in attempts:
            file.append(one)
    return path
