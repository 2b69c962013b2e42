"""Writes docs/rewards.md and the pictures in docs/rewards/ from the rewards themselves and the study of their noise.

    python docs/generate_rewards.py

A test fails when a file differs from what this would write. The noise is that of benchmarks/results/reward_noise.json,
and the comparison of presets that of benchmarks/results/reward_study.json, where that has been measured.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pkb_gym import rewards
from pkb_gym.envs.samplers import LearningProgress
from pkb_gym.problems.loading import load_module
from pkb_gym.rewards import advantages, compiled_only, component, presets, returns
from pkb_gym.rewards.recipes import RECIPES

HERE = Path(__file__).resolve().parent
parts = load_module(HERE / "page_parts.py", "docs.page_parts")
texts = load_module(HERE / "reward_texts.py", "docs.reward_texts")
curves = load_module(HERE / "reward_curves.py", "docs.reward_curves")
preset_study = load_module(HERE / "reward_study.py", "docs.reward_study")
pictures = curves.pictures

PAGE = HERE / "rewards.md"
FOLDER = HERE / "rewards"
NOISE = HERE.parent / "benchmarks" / "results" / "reward_noise.json"
OPERATORS = (component, compiled_only)
"""Modules whose components have others as operands."""

ERRORS = {
    "order_wrong": "order wrong",
    "slower_paid_as_faster": "slower paid as faster",
    "faster_not_paid": "faster not paid",
}
ESTIMATES = {"point": "measured", "low": "lower end"}
SHOWN_RATIOS = (1.01, 1.05, 1.2, 2.0)


def render() -> dict[Path, str]:
    """File -> its whole text: the page and the pictures."""
    study = json.loads(NOISE.read_text(encoding="utf-8"))
    found = {FOLDER / f"{family}.svg": pictures.curves(curves.curves(family)) for family in curves.FAMILIES}
    labels = ("speedup (lower end)", "share of right outputs")
    columns = [f"{speedup:g}x" for speedup in curves.GRID_SPEEDUPS]
    rows = ["right" if share == 1 else f"{share:.0%}" for share in curves.GRID_SHARES]
    found[FOLDER / "default.svg"] = pictures.grid(columns, rows, curves.default_grid(), labels)
    found[FOLDER / "episode.svg"] = pictures.episode(list(curves.EPISODE), *curves.episode())
    found[FOLDER / "noise.svg"] = pictures.noise(study["true_ratios"], _noise_panels(study))
    if preset_study.RESULT.exists():
        found[FOLDER / preset_study.PICTURE] = preset_study.picture(preset_study.read())
    return {PAGE: page(study)} | found


def page(study: dict[str, Any]) -> str:
    """The text."""
    sections = [
        texts.HEAD,
        texts.DEFAULT.format(headroom=curves.HEADROOM),
        _presets(),
        _components(),
        _algebra(),
        texts.TURNS,
        _recipes(),
        _functions("Credit of turns", returns),
        _functions("Comparison within a group", advantages),
        _noise(study),
        _baselines(study),
        *([preset_study.section(preset_study.read())] if preset_study.RESULT.exists() else []),
        texts.CURRICULUM,
        _section(LearningProgress),
    ]
    return "\n".join(sections)


def components() -> list[type]:
    """The classes of `pkb_gym.rewards` that value something by themselves: no operators, nothing abstract."""
    found = [getattr(rewards, name) for name in rewards.__all__]
    classes = [one for one in found if isinstance(one, type) and issubclass(one, rewards.Recorded)]
    return [one for one in classes if one not in (rewards.Recorded, rewards.BestSoFar, *operators())]


def operators() -> list[type]:
    """The classes of the algebra."""
    return [
        one
        for module in OPERATORS
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, rewards.Component) and one.__module__ == module.__name__
    ]


def _presets() -> str:
    rows = []
    for name, reward in presets.PRESETS.items():
        shown = reward.value if isinstance(reward, rewards.BestSoFar) else reward
        assert isinstance(shown, rewards.Component)
        source = RECIPES[name].source if name in RECIPES else _source(type(shown))
        low, high = shown.bounds()
        rows.append((f"`{name}`", f"`{reward!r}`", f"[{low:g}, {high:g}]", source))
    for name, family in presets.FAMILIES.items():
        rows.append((f"`{name}:P`", f"`{family(1.0)!r}` for P = 1", "[0, 1]", _source(type(family(1.0)))))
    head = ("name", "reward", "range", "source")
    return f"## Presets\n\n{parts.table(head, rows)}"


def _components() -> str:
    by_name = {one.__name__: one for one in components()}
    sections = ["## Components\n"]
    for family, title in curves.FAMILIES.items():
        sections.append(f"### {title}\n\n![{title}](rewards/{family}.svg)\n")
        sections += [_section(by_name[curve.title], level=4) for curve in curves.curves(family)]
    return "\n".join(sections)


def _algebra() -> str:
    rows = [(f"`{one.__name__}`", parts.first_line(one)) for one in operators() if one is not rewards.Component]
    return f"## Algebra\n\n{parts.markdown(rewards.Component)}\n\n{parts.table(('class', 'value'), rows)}"


def _recipes() -> str:
    rows = [(f"`{name}`", f"`{recipe.reward}`", recipe.source) for name, recipe in RECIPES.items()]
    return parts.table(("recipe", "preset", "source"), rows)


def _functions(title: str, module: types.ModuleType) -> str:
    found = [value for name, value in vars(module).items() if not name.startswith("_") and inspect.isfunction(value)]
    own = [one for one in found if one.__module__ == module.__name__]
    return f"### {title}\n\n" + "\n".join(_section(one, level=4) for one in own)


def _noise(study: dict[str, Any]) -> str:
    groups, source = study["groups"], study["sources"]["reward_noise_samples"]
    head = texts.NOISE_HEAD.format(
        evaluations=sum(found["evaluations"] for name, found in groups.items() if name.startswith("CPU")),
        machine=source["machine"],
        date=source["date"],
        least_load=min(source["load_average"]),
        most_load=max(source["load_average"]),
    )
    rows = [
        (
            group,
            f"{found['blocks']:g}",
            words,
            *(f"{_at(study, found['point'][error], r)} / {_at(study, found['low'][error], r)}" for r in SHOWN_RATIOS),
        )
        for group, found in groups.items()
        for error, words in ERRORS.items()
    ]
    columns = [f"differ by {ratio - 1:.0%}" for ratio in SHOWN_RATIOS]
    table = parts.table(("", "blocks", "error: measured / lower end", *columns), rows)
    return f"{head}\n{table}\n{texts.CHOICES.format(**_choices(study))}"


def _choices(study: dict[str, Any]) -> dict[str, str]:
    """The numbers in the text; those of H200s are of eager baselines."""
    tiny, published, gpu = (study["groups"][name] for name in ("CPU, tiny", "CPU, published", "H200, eager"))
    once = f"slower_paid_as_faster_once_in_{study['turns']}"
    return {
        "turns": str(study["turns"]),
        "point_slower": _at(study, gpu["point"]["slower_paid_as_faster"], 1.01),
        "low_slower": _at(study, gpu["low"]["slower_paid_as_faster"], 1.01),
        "point_once": _at(study, gpu["point"][once], 1.01),
        "low_once": _at(study, gpu["low"][once], 1.01),
        "point_order": _at(study, gpu["point"]["order_wrong"], 1.05),
        "low_order": _at(study, gpu["low"]["order_wrong"], 1.05),
        "low_missed": _at(study, gpu["low"]["faster_not_paid"], 1.05),
        "low_missed_more": _at(study, gpu["low"]["faster_not_paid"], 1.2),
        "point_margin": _at(study, gpu["point"]["slower_paid_as_faster"], 1.05),
        "tiny_blocks": f"{tiny['blocks']:g}",
        "tiny_order": _at(study, tiny["point"]["order_wrong"], 2.0),
        "published_blocks": f"{published['blocks']:g}",
        "published_order": _at(study, published["point"]["order_wrong"], 2.0),
    }


def _baselines(study: dict[str, Any]) -> str:
    choice = study["baselines"]
    rows = [
        (
            devices,
            f"`{size}`",
            f"{found['captured']} of {found['problems']}",
            _ratios(found["flattery"]),
            _percents(found["unearned"]),
            _percents(found["scatter"]["eager"]),
            _percents(found["scatter"]["graph"]),
        )
        for devices, sizes in choice.items()
        for size, found in sizes.items()
    ]
    head = ("", "size", "captured", "eager / captured", "unearned", "scatter, eager", "scatter, captured")
    two, four = choice["2 GPUs"], choice["4 GPUs"]
    text = texts.BASELINE_CHOICE.format(
        flattery_4=f"{four['published']['flattery'][1]:.1f}",
        flattery_2=f"{two['published']['flattery'][1]:.1f}",
        unearned_4=f"{100 * four['published']['unearned'][1]:.0f} %",
        unearned_2=f"{100 * two['published']['unearned'][1]:.0f} %",
        graph_scatter=f"{100 * two['published']['scatter']['graph'][1]:.1f} %",
        eager_scatter=f"{100 * two['published']['scatter']['eager'][1]:.1f} %",
        large_2=f"{two['large']['flattery'][1]:.2f}",
    )
    return f"{texts.BASELINES_HEAD}\n{parts.table(head, rows)}\n{text}"


def _ratios(quantiles: Sequence[float]) -> str:
    low, middle, high = quantiles
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _percents(quantiles: Sequence[float]) -> str:
    low, middle, high = (100 * value for value in quantiles)
    return f"{middle:.1f} % ({low:.1f} to {high:.1f})"


def _noise_panels(study: dict[str, Any]) -> dict[str, dict[str, dict[str, Sequence[float]]]]:
    return {
        group: {
            words: {label: found[estimate][error] for estimate, label in ESTIMATES.items()}
            for error, words in ERRORS.items()
        }
        for group, found in study["groups"].items()
    }


def _at(study: dict[str, Any], shares: Sequence[float], ratio: float) -> str:
    """A share in percent, with one digit where it is small."""
    percent = 100 * shares[study["true_ratios"].index(ratio)]
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


def _section(thing: Callable[..., object], level: int = 3) -> str:
    signature = "" if isinstance(thing, type) else str(inspect.signature(thing)).split(" -> ")[0]
    return f"{'#' * level} `{getattr(thing, '__name__', thing)}{_plain(signature)}`\n\n{parts.markdown(thing)}\n"


def _plain(signature: str) -> str:
    """Parameters with their defaults and without their types."""
    return re.sub(r": '[^']*'", "", signature).replace(" = ", "=")


def _source(thing: object) -> str:
    """The text of a docstring after "Source:"."""
    found = re.search(r"Source: (.*?)(\n\n|$)", inspect.getdoc(thing) or "", re.DOTALL)
    assert found is not None, f"{thing} names no source"
    return " ".join(found[1].split()).rstrip(".")


def main() -> None:
    """Writes every file and takes away pictures that are gone."""
    FOLDER.mkdir(exist_ok=True)
    files = render()
    for path in FOLDER.iterdir():
        if path not in files:
            path.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parts.parser(__doc__).parse_args()
    main()
