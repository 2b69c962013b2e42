"""What a learning run compares besides its policies, on docs/training.md: arms, the text of feedback, CUDA kernels.

Each part is there where its results are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
pictures = load_module(HERE / "reward_pictures.py", "docs.reward_pictures")
seeds = load_module(HERE / "training_seeds.py", "docs.training_seeds")
tables = load_module(HERE / "training_tables.py", "docs.training_tables")

CUDA = "learning_run_cuda*.json"

Found = Mapping[str, Any]


def read_cuda() -> dict[str, Found]:
    """Name of the file -> result, of each run with kernels in CUDA; the one without further seeds is the first."""
    paths = sorted(tables.RESULT.parent.glob(CUDA))
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def sections(found: Found, cuda: Mapping[str, Found] | None = None) -> str:
    """Further tables, each with what is needed to read it; empty where there are none.

    Args:
        found: the result of the run.
        cuda: those of runs with kernels in CUDA.
    """
    texts = [*(_arm(arm) for arm in found.get("arms", ())), _feedback(found.get("feedback", ()))]
    texts += [_cuda(*first) for first in [*(cuda or {}).items()][:1]]
    return "\n\n".join(text for text in [*texts, seeds.section(cuda or {})] if text)


def drawn(found: Found, cuda: Mapping[str, Found] | None = None) -> dict[str, str]:
    """File -> picture."""
    files = {f"arm_{arm['arm']}.svg": _arm_picture(arm) for arm in found.get("arms", ())}
    for first in [*(cuda or {}).values()][:1]:
        files["cuda_curves.svg"] = tables.drawn(first)["curves.svg"]
    return files


def _arm(arm: Found) -> str:
    """An arm beside the training that it is compared with."""
    both = [(f"`{arm['arm']}`", arm["trainings"]["arm"]), ("without", arm["trainings"]["other"])]
    texts = (
        f"#### Arm `{arm['arm']}`",
        f"{_options(arm)}Both trainings begin with the SFT of seed {arm['seed']}. Means of the training are over the "
        f"steps of the last fifth of {arm['equal_submissions']} submissions, which both have:",
        _arm_training(both),
        f"![Reward and share right by submissions](training/arm_{arm['arm']}.svg)",
        "On the rings, as if every episode had ended after its first turn, and after its second:",
        _arm_rings(both),
        "Gains of the arm, paired by prompt, after the first turn and after the last:",
        _arm_gains(arm["gains"]),
    )
    return "\n\n".join(text.strip() for text in texts)


Trainings = list[tuple[str, Found]]


def _arm_training(both: Trainings) -> str:
    rows = []
    for name, one in both:
        last = one["at_equal_submissions"] or {}
        figures = [f"{last[key]:.0%}" if key in last else "" for key in ("correct_first", "correct")]
        counts = (str(len(one["curve"])), str(one["submissions"]), str(one["evaluations"]))
        rows.append((name, *counts, *figures, f"{last['reward']:.2f}" if last else ""))
    head = ("training", "steps", "submissions", "evaluations", "right at first", "right", "reward")
    return str(parts.table(head, rows))


def _arm_rings(both: Trainings) -> str:
    rows = [
        (ring, name, str(number), tables._share(turn["correct"]), tables._value(turn["reward"]))
        for ring in tables.RINGS
        for name, one in both
        if ring in one["rings"]
        for number, turn in enumerate(one["rings"][ring]["turns"], start=1)
    ]
    return str(parts.table(("ring", "policy", "turns", "correct", "reward"), rows))


def _arm_gains(gains: Found) -> str:
    names = {"other": "the training without", "sft": "SFT"}
    rows = []
    for over, rings in gains.items():
        for ring in (ring for ring in tables.RINGS if ring in rings):
            for turn, one in rings[ring].items():
                if one["reward"] is not None:
                    reward = (tables._signed(one["reward"]), tables._errors(one["reward"]))
                    rows.append((ring, names[over], turn, *reward, tables._signed(one["correct"])))
    return str(parts.table(("ring", "over", "turn", "gain in reward", "in errors", "in share correct"), rows))


def _options(arm: Found) -> str:
    """The options that differ."""
    mine, other = (arm["trainings"][name]["options"] for name in ("arm", "other"))
    differ = [
        f"`{name}` {value} ({other.get(name)} without)" for name, value in mine.items() if other.get(name) != value
    ]
    return f"It differs in {', '.join(differ)}. " if differ else ""


def _arm_picture(arm: Found) -> str:
    """The trainings by submissions, at the steps of the one that has fewer."""
    curves = {arm["arm"]: arm["trainings"]["arm"]["curve"], "without": arm["trainings"]["other"]["curve"]}
    places = [step["submissions"] for step in min(curves.values(), key=len)]

    def panel(title: str, key: str) -> Any:  # noqa: ANN401  # of a module that is loaded
        lines = {name.replace("_", " "): [_at(curve, place, key) for place in places] for name, curve in curves.items()}
        return pictures.Curve(title, "submissions of GRPO", places, lines, log=False)

    panels = (("mean reward of an episode", "reward"), ("share of episodes right", "correct"))
    text: str = pictures.curves([panel(*one) for one in (*panels, ("share right at first", "correct_first"))])
    return text


def _at(curve: list[Mapping[str, float]], place: float, key: str) -> float:
    """The figure of the step that ends nearest to so many submissions; NaN beyond the curve's end."""
    if not curve or place > 1.05 * curve[-1]["submissions"]:
        return float("nan")
    return float(min(curve, key=lambda step: abs(step["submissions"] - place))[key])


def _feedback(effects: list[Found]) -> str:
    """Second turns with the text of the feedback and without, and the difference."""
    turns, differences = [], []
    for one in effects:
        policy = tables.POLICIES[one["policy"]] + (f", arm `{one['arm']}`" if one["arm"] else "")
        for kind, words in (("whole", "whole"), ("verdict", "only that it failed")):
            of = one[kind]
            second = of["second_turn"]
            shares = [" then ".join(tables._share(turn["correct"]) for turn in of["turns"][:2])]
            counts = [str(second[name]) for name in ("failed_first", "answered", "repeated")]
            cells = (*counts, tables._share(second["repaired"]), *shares)
            turns.append((str(one["seed"]), one["ring"], policy, words, str(of["submissions"]), *cells))
        effect = (tables._signed(one["correct"]), tables._signed(one["reward"]), tables._errors(one["reward"]))
        differences.append((str(one["seed"]), one["ring"], policy, str(one["prompts"]), *effect))
    if not turns:
        return ""
    head = ("seed", "ring", "policy", "feedback", "submissions", "first failed", "submitted again", "the same source")
    more = ("seed", "ring", "policy", "prompts", "in share correct", "in reward", "in errors")
    texts = (
        "#### The text of the feedback",
        "The same policies with the text of the feedback, and with the one word `failed` in its place; *correct* is "
        "the share after the first turn and after the second:",
        parts.table((*head, "repaired", "correct"), turns),
        "What the second turn adds with the text, less what it adds without, paired by prompt:",
        parts.table(more, differences),
    )
    return "\n\n".join(text.strip() for text in texts)


def _cuda(name: str, found: Found) -> str:
    texts = (tables._about(found), tables._rings(found), tables._gains(found), tables._verdicts(found))
    more = (tables._by_problem(found), tables._nearest(found), tables._study(found), tables._time(found))
    picture = "![Loss of SFT, reward and share correct of GRPO on GPUs](training/cuda_curves.svg)"
    body = "\n\n".join(text.strip() for text in (*texts, *more) if text)
    body = body.replace(f"`benchmarks/results/{tables.RESULT.name}`", f"`benchmarks/results/{name}`", 1)
    where = seeds.where_evaluated(found)
    return "\n\n".join(text for text in ("#### Kernels in CUDA, timed on GPUs", where, picture, body) if text)
