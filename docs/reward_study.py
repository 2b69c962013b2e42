"""The presets on the same evaluations, on docs/rewards.md: text, table and picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pkb_gym.problems.loading import load_module

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
pictures = load_module(HERE / "reward_pictures.py", "docs.reward_pictures")

RESULT = HERE.parent / "benchmarks" / "results" / "reward_study.json"
PICTURE = "study.svg"
FIGURES = {
    "flat": "groups without a gradient",
    "ties": "ties of right kernels",
    "order": "faster kernel has more",
    "noise": "share of noise",
}
TAUGHT = {"correct": "replay: share right", "speed": "replay: doublings of speed"}

TEXT = """\
## Presets on the same evaluations

![Flat groups, ties, order, and what every preset teaches](rewards/study.svg)

`python -m benchmarks.reward_study` values equal evaluations by every preset (`benchmarks/results/reward_study.json`):
{evaluations} submissions of the policies of [the learning run](training.md#a-learning-run), {right} of them right, on
{prompts} prompts of {problems} problems ({machine}, CPU kernels on 2 ranks at sizes near `tiny`).

- *no gradient*: chance that {group} submissions on a prompt all have one reward, as a group of GRPO;
- *ties*: pairs of different right kernels of a prompt that have one reward;
- *order*: such pairs in which the faster kernel has the greater reward, a tie counting half;
{noise}- *margin*: least reward of a right kernel less the greatest of a wrong one;
- *learns right*, *learns speed*: gain in the share right, and in doublings of the speed of right kernels, of a policy
  over the recorded kernels of each of {replayed} prompts, after {steps} groups of {group} compared as the preset's
  recipe does (mean of {seeds} seeds). Every preset draws from the same kernels and evaluations.
"""

NOISE = """\
- *noise*: mean squared difference of two evaluations of one kernel ({repeated} pairs), by that of two different right
  kernels of a prompt. At 1 a difference between right kernels says nothing;
"""
LEAST_REPEATED = 20
"""Pairs of evaluations of one kernel without which `noise` is not shown."""


def read() -> dict[str, Any]:
    """The result."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return found


def section(study: Mapping[str, Any]) -> str:
    """Text and table."""
    with_noise = study["repeated"] >= LEAST_REPEATED
    rows = [
        (
            *(f"`{name}`", *(_share(found[figure]) for figure in ("flat", "ties", "order"))),
            *(_number(found["replay"][figure], "+.2f") for figure in TAUGHT),
            *([_number(found["noise"])] if with_noise else []),
            *("" if found["margin"] is None else f"{found['margin']:+.2f}", _range(found)),
        )
        for name, found in study["presets"].items()
    ]
    head = ["preset", "no gradient", "ties", "order", "learns right", "learns speed"]
    head += [*(["noise"] if with_noise else []), "margin", "rewards of right kernels"]
    named = {name: study[name] for name in ("evaluations", "right", "prompts", "problems", "group")}
    named["noise"] = NOISE.format(repeated=study["repeated"]) if with_noise else ""
    replay = next(iter(study["presets"].values()))["replay"]
    named |= {"replayed": replay["prompts"], "steps": replay["steps"], "seeds": replay["seeds"]}
    text = TEXT.format(**named, machine=study["sources"][0]["machine"])
    return f"{text}\n{parts.table(head, rows)}\n\n{_reading(study)}"


def _reading(study: Mapping[str, Any]) -> str:
    """Sentences that follow from the figures."""
    presets = study["presets"]
    tied = [f"`{name}`" for name, found in presets.items() if found["ties"] is not None and found["ties"]["mean"] == 1]
    sentences = [f"{study['caught']} of these submissions had an integrity finding, for which no preset pays."]
    if len(tied) > 1:
        names = f"{', '.join(tied[:-1])} and {tied[-1]}"
        sentences.append(
            f"Under {names} all right kernels have one reward: their speedups lie beyond those it tells apart."
        )
    speeds = {name: found["replay"]["speed"] for name, found in presets.items() if found["replay"]["speed"]}
    if speeds:
        fastest = max(speeds, key=lambda name: _mean(speeds[name]))
        gain = _number(speeds[fastest])
        sentences.append(f"Right kernels become faster most under `{fastest}`, by {gain} doublings.")
    flats = {name: found["flat"] for name, found in presets.items() if found["flat"]}
    if flats:
        fewest = min(flats, key=lambda name: _mean(flats[name]))
        sentences.append(f"Groups without a gradient are fewest under `{fewest}`, {_share(flats[fewest])}.")
    return " ".join(sentences)


def picture(study: Mapping[str, Any]) -> str:
    """A panel for each figure, a point for each preset."""
    of = study["presets"]
    shown = [figure for figure in FIGURES if figure != "noise" or study["repeated"] >= LEAST_REPEATED]
    panels = {FIGURES[figure]: [_mean(found[figure]) for found in of.values()] for figure in shown}
    panels |= {title: [_mean(found["replay"][figure]) for found in of.values()] for figure, title in TAUGHT.items()}
    names = list(of)
    return str(pictures.curves([pictures.Curve(title, "", names, {"": values}) for title, values in panels.items()]))


def _mean(found: Mapping[str, Any] | None) -> float:
    return float("nan") if found is None else float(found["mean"])


def _share(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    error = found["standard_error"]
    return f"{100 * found['mean']:.0f}" + (" %" if error is None else f" ± {100 * error:.0f} %")


def _number(found: Mapping[str, Any] | None, spec: str = ".2f") -> str:
    if found is None:
        return ""
    error = found["standard_error"]
    return format(found["mean"], spec) + ("" if error is None else f" ± {error:.2f}")


def _range(found: Mapping[str, Any]) -> str:
    return "" if found["right_range"] is None else "{:.2f} to {:.2f}".format(*found["right_range"])
