"""All seeds of runs with kernels in CUDA on docs/training.md, whichever result they are in: policies and controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
tables = load_module(HERE / "training_tables.py", "docs.training_tables")

RING = next(iter(tables.RINGS))
GAIN = "grpo over sft"
HEAD = (
    *("seed", "SFT correct", "SFT reward", "GRPO correct", "faster than captured", "GRPO reward"),
    *("gain in reward", "in errors", "in share correct", "steps of GRPO", "evaluations"),
)
CONTROLS_HEAD = ("seed", "control", "evaluations of a prompt", "reward", "GRPO has more", "in errors")

Found = Mapping[str, Any]


def section(results: Mapping[str, Found]) -> str:
    """Tables of the seeds of all results; empty where there are fewer than two.

    Args:
        results: name of the file -> result.
    """
    rows = [row for found in results.values() for row in _rows(found)]
    if len(rows) < 2:
        return ""
    lines = "\n".join(f"- {_about(name, found)}" for name, found in results.items())
    texts = (
        "#### Kernels in CUDA, seed by seed",
        lines,
        f"Shares of episodes and mean reward on the ring `{RING}` after the last turn. Gains are those of GRPO over "
        "SFT, paired by prompt, and standard errors are clustered by problem. *All* takes the episodes of a result's "
        "seeds on a prompt together; those of an SFT that they share count once:",
        parts.table(HEAD, rows),
        *_controls(results),
    )
    return "\n\n".join(text.strip() for text in texts)


def where_evaluated(found: Found, of: str = "") -> str:
    """The GPUs of the evaluation and of the policy, in words; empty where kernels ran on the CPU.

    Args:
        found: a result.
        of: whose submissions, to follow the word.
    """
    count = len(found.get("evaluation_gpus") or ())
    learnt = "on one of them, in turns with evaluation" if found.get("takes_turns") else "on another"
    return f"Submissions{of} were evaluated on {count} GPUs, and the policy learnt {learnt}." if count else ""


def _controls(results: Mapping[str, Found]) -> Sequence[str]:
    """The controls of all seeds, with what is needed to read them; nothing where there are none."""
    rows = [row for found in results.values() for one in _seeds(found) for row in _controls_of(one)]
    if not rows:
        return ()
    intro = (
        f"Controls of each seed, with the evaluations that they had of a prompt of `{RING}`. Rewards are those of the "
        "best submission on a prompt, and GRPO's evaluations include its training. `evolve` is compared on the "
        "prompts that it searched:"
    )
    return intro, parts.table(CONTROLS_HEAD, rows)


def _controls_of(one: Found) -> list[tuple[str, ...]]:
    """The controls of a seed; the search without a model is in a comparison of its own, of fewer prompts."""
    compared = [*one.get("study", ()), *(arm for arm in one.get("study_evolve", ()) if arm["arm"] == "evolve")]
    return [
        (str(one["seed"]), arm["arm"], f"{arm['evaluations']:.1f}", tables._value(arm["reward"]), *tables._more(arm))
        for arm in compared
        if arm["subject_gain"] is not None
    ]


def _about(name: str, found: Found) -> str:
    """Where a result is from."""
    numbers = [str(one["seed"]) for one in _seeds(found)]
    seeds, of = (f"Seeds {', '.join(numbers)}", " of each") if len(numbers) > 1 else (f"Seed {numbers[0]}", "")
    gpu = ", ".join(found.get("gpus") or ()) or "no GPU"
    result = f"`benchmarks/results/{name}` ({found['date']}, commit {found['commit']})"
    return f"{seeds}: {result}: {gpu}, {found['machine']}. {where_evaluated(found, of)}".strip()


def _seeds(found: Found) -> Sequence[Found]:
    """The seeds of a result; one alone is the result itself."""
    return found.get("seeds") or [{"seed": 0, **found}]


def _rows(found: Found) -> list[tuple[str, ...]]:
    """One for each seed, and one for all of them joined."""
    rows = [_row(str(one["seed"]), one) for one in _seeds(found)]
    joined = found.get("joined")
    return rows if joined is None else [*rows, _row(f"All of {', '.join(map(str, joined['seeds']))}", joined)]


def _row(name: str, one: Found) -> tuple[str, ...]:
    sft, grpo = (_figures(one, policy) for policy in ("sft", "grpo"))
    gain = one["gains"].get(GAIN, {}).get(RING) or {}
    training = one.get("grpo") or {}
    return (
        name,
        *(tables._share(sft.get("correct")), tables._value(sft.get("reward"))),
        *(tables._share(grpo.get("correct")), tables._share(grpo.get("fast_captured"))),
        *(tables._value(grpo.get("reward")), tables._signed(gain.get("reward")), tables._errors(gain.get("reward"))),
        *(tables._signed(gain.get("correct")), str(training.get("steps", "")), str(training.get("evaluations", ""))),
    )


def _figures(one: Found, policy: str) -> Found:
    """Of a policy on the ring, as a seed has them; a result by itself has more, one level deeper."""
    ring = one["policies"].get(policy, {}).get(RING, {})
    return {**ring.get("figures", {}), **ring}
