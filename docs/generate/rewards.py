"""Tables and pictures of docs/rewards.md, from the rewards themselves and example records."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Literal

from docs.generate.figures import Curve, bars, curves, grid
from docs.generate.markdown import first_line, source, table
from pkb_gym import rewards
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards import advantages, component, returns
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.rewards.presets import FAMILIES, PRESETS
from pkb_gym.rewards.recipes import RECIPES

BASELINE_US = 100.0
HEADROOM = 100
HEADROOMS = (10, HEADROOM, 1000)
REACHABLE = 10**0.6
"""Speedup that is known to be reachable at `HEADROOM`, by `rewards.reachable_speedup`: 3.98."""
SPEEDUPS = tuple(2 ** (exponent / 4) for exponent in range(-12, 21))
GRID_SHARES = (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)
GRID_SPEEDUPS = (0.25, 0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0)
EPISODE = {
    "does not compile": failed("compile_error"),
    "half earned": failed("output_mismatch", earned_share=0.5),
    "right, 0.8x": timed(speedup_low=0.8),
    "right, 1.6x": timed(speedup_low=1.6),
    "deadlock": failed("deadlock"),
    "1.6x again": timed(speedup_low=1.6),
    "right, 2.5x": timed(speedup_low=2.5),
}
EPISODE_RECIPES = ("default", "kevin", "dr_kernel")
TYPICAL: Mapping[str, Feedback | tuple[float, Literal["late_output"] | None]] = {
    "empty: outputs left as they were": failed("output_mismatch", nothing_written=True),
    "zeros, or a copy of its own input": failed("output_mismatch"),
    "does not compile": failed("compile_error"),
    "crashes, or a deadlock": failed("deadlock"),
    "race, noticed": failed("race"),
    "wrong, 80 % of outputs earned": failed("output_mismatch", earned_share=0.8),
    "right, 0.3x": (0.3, None),
    "right, as fast": (1.0, None),
    "right, 1.2x": (1.2, None),
    "right, 2x": (2.0, None),
    "right, an expert's speed, 4x": (REACHABLE, None),
    "right, 4x, cheating noticed": (REACHABLE, "late_output"),
}
"""Submissions of a problem whose roofline is at `HEADROOM` times the baseline's speed; timed ones by their speedup."""


def components() -> list[type[rewards.Component]]:
    """The classes of `pkb_gym.rewards` that value a submission by themselves."""
    found = [getattr(rewards, name) for name in rewards.__all__]
    own = [one for one in found if isinstance(one, type) and issubclass(one, rewards.Component)]
    return [one for one in own if one.__module__ != component.__name__]


def preset_table() -> str:
    """Name, reward, range and source of each preset."""
    rows = []
    for name, reward in PRESETS.items():
        shown = reward.value if isinstance(reward, rewards.BestSoFar) else reward
        assert isinstance(shown, rewards.Component)
        low, high = shown.bounds()
        about = RECIPES[name].source if name in RECIPES else source(type(shown))
        rows.append((f"`{name}`", f"`{reward!r}`", f"[{low:g}, {high:g}]", about))
    for name, family in FAMILIES.items():
        rows.append((f"`{name}:P`", f"`{family(1.0)!r}` for P = 1", "[0, 1]", source(type(family(1.0)))))
    return table(("name", "reward", "range", "source"), rows)


def typical_table() -> str:
    """The value of typical submissions under each preset."""
    names = [name for name in PRESETS if name != "per_turn"]
    rows = []
    for words, one in TYPICAL.items():
        feedback = one if isinstance(one, Feedback) else _timed(one[0], caught=one[1])
        values = [_valid(PRESETS[name](feedback)) for name in names]
        rows.append((words, *(f"{value:.3g}" for value in values)))
    return table(("submission", *(f"`{name}`" for name in names)), rows)


def component_table() -> str:
    """Each component with the first line of its docstring."""
    link = "[`{0}`](api/rewards.md#pkb_gym.rewards.{0})"
    return table(("component", "value"), [(link.format(one.__name__), first_line(one)) for one in components()])


def credit_table() -> str:
    """The functions that credit the turns of an episode and compare a group of episodes."""
    rows = [
        (title, f"`{name}`", first_line(function))
        for title, module in {"credit of a turn": returns, "comparison in a group": advantages}.items()
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]
    return table(("step", "function", "value"), rows)


def speed_picture() -> str:
    """The values of components by the speedup of a right kernel."""
    plain: Mapping[str, Mapping[str, rewards.Component]] = {
        "Speedup": {"cap 3": rewards.Speedup(cap=3.0), "cap 8": rewards.Speedup(cap=8.0)},
        "LogSpeedup": {"": rewards.LogSpeedup()},
        "FastP": {"p = 1": rewards.FastP(1.0), "p = 2": rewards.FastP(2.0)},
        "Milestones": {"": rewards.Milestones()},
    }
    found = [_curve(title, {label: (one, HEADROOM) for label, one in lines.items()}) for title, lines in plain.items()]
    by_headroom = (rewards.Performance(), rewards.Utilisation(), rewards.LadderThenPerformance())
    found += [
        _curve(type(one).__name__, {f"bound at {room}x": (one, room) for room in HEADROOMS}) for one in by_headroom
    ]
    return curves(found)


def default_picture() -> str:
    """The default's value by earned share (rows) and speedup (columns); a wrong kernel is never timed."""
    value = rewards.find_reward("default")

    def found(share: float, speedup: float) -> Feedback:
        return failed("output_mismatch", earned_share=share) if share < 1 else _timed(speedup)

    values = [[_valid(value(found(share, speedup))) for speedup in GRID_SPEEDUPS] for share in GRID_SHARES]
    rows = ["right" if share == 1 else f"{share:.0%}" for share in GRID_SHARES]
    columns = [f"{speedup:g}x" for speedup in GRID_SPEEDUPS]
    return grid(columns, rows, values, ("speedup (lower end)", "share of earned outputs"))


def episode_picture() -> str:
    """The values of the submissions of `EPISODE`, and the credit of its turns by three recipes."""
    value = rewards.find_reward("per_turn")
    panels: dict[str, Sequence[float]] = {"value of the submission alone": [_valid(value(f)) for f in EPISODE.values()]}
    for name in EPISODE_RECIPES:
        reward = rewards.find_reward(RECIPES[name].reward)
        values = [reward(feedback) for feedback in EPISODE.values()]
        panels[name] = [_valid(credit) for credit in RECIPES[name].returns(values)]
    return bars([f"{turn}\n{words}" for turn, words in enumerate(EPISODE, start=1)], panels)


def _curve(title: str, lines: Mapping[str, tuple[rewards.Component, float]]) -> Curve:
    values = {
        label: [_valid(reward(_timed(speedup, headroom))) for speedup in SPEEDUPS]
        for label, (reward, headroom) in lines.items()
    }
    return Curve(title, "speedup", SPEEDUPS, values)


def _timed(speedup: float, headroom: float = HEADROOM, caught: Literal["late_output"] | None = None) -> Feedback:
    return timed(baseline_us=BASELINE_US, roofline_us=BASELINE_US / headroom, speedup_low=speedup, caught=caught)


def _valid(value: float | None) -> float:
    assert value is not None, "no example is an infrastructure failure"
    return value
