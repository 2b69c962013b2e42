"""The curves of docs/rewards.md: the values of each component for a series of example records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pkb_gym import rewards
from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.problems.loading import load_module
from pkb_gym.rewards.examples import failed, profiled, timed
from pkb_gym.rewards.recipes import RECIPES

pictures = load_module(Path(__file__).with_name("reward_pictures.py"), "docs.reward_pictures")

BASELINE_US = 100.0
HEADROOMS = (4, 16, 64)
SPEEDUPS = tuple(2 ** (exponent / 4) for exponent in range(-12, 21))
SHARES = (*(part / 20 for part in range(20)), 0.99, 1.0)
HEADROOM = 16

STAGES = {
    "rejected": failed("rejected"),
    "does not compile": failed("compile_error"),
    "falls when run": failed("runtime_error"),
    "all wrong": failed("output_mismatch"),
    "half right": failed("output_mismatch", right_share=0.5),
    "right": timed(),
}
COMMUNICATION = {
    "of its own": timed().model_copy(update={"calls_torch_distributed": False}),
    "the library's": timed().model_copy(update={"calls_torch_distributed": True}),
}
EPISODE = {
    "does not compile": failed("compile_error"),
    "half right": failed("output_mismatch", right_share=0.5),
    "right, 0.8x": profiled({"my_kernel": 0.4, "ncclDevKernel_AllReduce": 0.6}, speedup=0.8),
    "right, 1.6x": profiled({"my_kernel": 1.0}, speedup=1.6),
    "deadlock": failed("deadlock"),
    "right, 1.6x again": profiled({"my_kernel": 1.0}, speedup=1.6),
    "right, 2.5x": profiled({"my_kernel": 1.0}, speedup=2.5),
}
EPISODE_RECIPES = ("default", "kevin", "dr_kernel")
GRID_SHARES = (0.0, 0.25, 0.5, 0.75, 0.99, 1.0)
GRID_SPEEDUPS = (0.25, 0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0)

FAMILIES = {
    "correctness": "How far a submission came, and how much of it is right",
    "speed": "How fast a right kernel is",
    "means": "By what means",
}
"""File of a picture -> what its curves have in common."""


def curves(family: str) -> list[pictures.Curve]:
    """The curves of a family; each is titled by its component's class."""
    return {"correctness": _correctness, "speed": _speed, "means": _means}[family]()


def default_grid() -> list[list[float]]:
    """The default's value by right share (rows) and speedup (columns); what is wrong is never timed."""
    value = rewards.find_reward("default")

    def found(share: float, speedup: float) -> Feedback:
        return failed("output_mismatch", right_share=share) if share < 1 else _timed(speedup)

    return [[_valid(value(found(share, speedup))) for speedup in GRID_SPEEDUPS] for share in GRID_SHARES]


def episode() -> tuple[list[float], dict[str, list[float]]]:
    """The values of `EPISODE` under the default reward, and the credit of each turn by three recipes."""
    returns = {}
    for name in EPISODE_RECIPES:
        recipe = RECIPES[name]
        reward = rewards.find_reward(recipe.reward)
        credited = recipe.returns([reward(feedback) for feedback in EPISODE.values()])
        returns[name] = [_valid(credit) for credit in credited]
    default = rewards.find_reward("per_turn")
    return [_valid(default(feedback)) for feedback in EPISODE.values()], returns


def _correctness() -> list[pictures.Curve]:
    return [
        _by_name(rewards.Ladder(), STAGES),
        _by_name(rewards.Correctness(), STAGES),
    ]


def _speed() -> list[pictures.Curve]:
    by_headroom = {
        "LogPerformance": rewards.LogPerformance(),
        "Utilisation": rewards.Utilisation(),
        "LadderThenPerformance": rewards.LadderThenPerformance(),
    }
    return [
        _by_speedup("Speedup", {"cap 3": rewards.Speedup(cap=3.0), "cap 8": rewards.Speedup(cap=8.0)}),
        _by_speedup("LogSpeedup", {"": rewards.LogSpeedup()}),
        _by_speedup("FastP", {"p = 1": rewards.FastP(1.0), "p = 2": rewards.FastP(2.0)}, x=_around(1.0, 2.0)),
        _by_speedup("Milestones", {"": rewards.Milestones()}, x=_around(1 / 0.95, 1.25 / 0.95)),
        *(
            pictures.Curve(
                name,
                "speedup",
                SPEEDUPS,
                {
                    f"bound at {headroom}x": [_valid(reward(_timed(speedup, headroom))) for speedup in SPEEDUPS]
                    for headroom in HEADROOMS
                },
                log=True,
            )
            for name, reward in by_headroom.items()
        ),
    ]


def _means() -> list[pictures.Curve]:
    return [_by_own_share(rewards.OwnKernelShare()), _by_name(rewards.OwnCommunication(), COMMUNICATION)]


def _by_name(reward: rewards.Component, found: Mapping[str, Feedback]) -> pictures.Curve:
    return pictures.Curve(type(reward).__name__, "", list(found), {"": [_valid(reward(one)) for one in found.values()]})


def _by_speedup(title: str, found: Mapping[str, rewards.Component], *, x: Sequence[float] = SPEEDUPS) -> pictures.Curve:
    lines = {label: [_valid(reward(_timed(speedup))) for speedup in x] for label, reward in found.items()}
    return pictures.Curve(title, "speedup", x, lines, log=True)


def _around(*thresholds: float) -> list[float]:
    """Speedups just below and above each, so that a line jumps where the reward does."""
    beside = [threshold * factor for threshold in thresholds for factor in (1 - 1e-6, 1 + 1e-6)]
    return [SPEEDUPS[0], *beside, SPEEDUPS[-1]]


def _by_own_share(reward: rewards.Component) -> pictures.Curve:
    names = ("my_kernel", "ncclDevKernel_AllReduce")
    shares = sorted({*SHARES, 0.5 - 1e-6, 0.5 + 1e-6})
    found = [profiled({names[0]: share, names[1]: 1 - share}) for share in shares]
    return pictures.Curve(
        type(reward).__name__,
        "share of the time in its own kernel",
        shares,
        {"": [_valid(reward(one)) for one in found]},
    )


def _timed(speedup: float, headroom: float = HEADROOM) -> Feedback:
    return timed(baseline_us=BASELINE_US, roofline_us=BASELINE_US / headroom, speedup_low=speedup)


def _valid(value: float | None) -> float:
    assert value is not None, "no example is an infrastructure failure"
    return value
