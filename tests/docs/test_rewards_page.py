"""docs/rewards.md and its pictures are what docs/generate_rewards.py writes, and leave no component out."""

from __future__ import annotations

import importlib.metadata
import re
from xml.etree import ElementTree as ET

import pytest

from pkb_gym.problems.loading import load_module
from pkb_gym.rewards import BestSoFar, Component
from pkb_gym.rewards.presets import PRESETS
from pkb_gym.rewards.recipes import RECIPES
from tests.docs.pages import DOCS, ROOT

generator = load_module(DOCS / "generate_rewards.py", "tests.docs.generate_rewards")
PAGE = generator.PAGE.read_text(encoding="utf-8")
STALE = "is stale: run `python docs/generate_rewards.py`"
MOST_BYTES = 60_000


@pytest.fixture(scope="module")
def rendered():
    return generator.render()


def test_the_page_is_fresh(rendered):
    assert generator.PAGE == DOCS / "rewards.md"
    assert rendered[generator.PAGE] == PAGE, f"docs/rewards.md {STALE}"


def test_there_is_every_picture_and_no_other(rendered):
    pictures = {path for path in rendered if path != generator.PAGE}
    assert set(generator.FOLDER.iterdir()) == pictures
    assert {f"rewards/{path.name}" for path in pictures} == set(re.findall(r"\]\((rewards/\w+\.svg)\)", PAGE))


def test_the_pictures_are_fresh(rendered):
    pinned = re.search(r"^matplotlib==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    if importlib.metadata.version("matplotlib") != pinned:
        pytest.skip(f"pictures are those of matplotlib {pinned}")
    stale = [p.name for p, text in rendered.items() if p.suffix == ".svg" and text != p.read_text(encoding="utf-8")]
    assert not stale, f"docs/rewards/{', '.join(stale)} {STALE}"


@pytest.mark.parametrize("path", sorted(generator.FOLDER.iterdir()), ids=lambda path: path.name)
def test_a_picture_is_small_and_well_formed_and_bears_no_date(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES and not re.search(r"20\d\d-\d\d-\d\d", text)
    assert ET.fromstring(text).tag.endswith("svg")


def test_drawing_again_gives_the_same_bytes():
    curves = generator.curves.curves("correctness")
    assert generator.pictures.curves(curves) == generator.pictures.curves(curves)


def test_every_component_has_a_curve_and_a_section():
    shown = [curve.title for family in generator.curves.FAMILIES for curve in generator.curves.curves(family)]
    assert sorted(shown) == sorted(one.__name__ for one in generator.components()), (
        "add a curve to docs/reward_curves.py"
    )
    assert all(f"#### `{name}`" in PAGE for name in shown)


def test_every_class_of_the_package_is_a_component_an_operator_or_about_turns():
    own = {kind for kind in _below(Component) if kind.__module__.startswith("pkb_gym.")}
    assert own <= {*generator.components(), *generator.operators(), BestSoFar}


def test_every_preset_and_recipe_is_listed():
    assert all(f"| `{name}` |" in PAGE for name in [*PRESETS, *RECIPES])


def test_the_curves_have_values_for_all_that_is_shown():
    for family in generator.curves.FAMILIES:
        for curve in generator.curves.curves(family):
            assert all(len(line) == len(curve.x) for line in curve.lines.values()), curve.title


def test_the_code_on_the_page_runs():
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/rewards.md", "exec"), names)
    assert len(blocks) == 2 and names["reward"]


def _below(kind: type) -> set[type]:
    return {below for child in kind.__subclasses__() for below in {child, *_below(child)}}


def test_presets_on_the_same_evaluations_have_their_figures():
    """A table and a picture, also where a figure could not be computed."""
    share = {"mean": 0.25, "standard_error": 0.05}
    figures = {"flat": share, "ties": {"mean": 0.5, "standard_error": None}, "order": share, "noise": share}
    taught = {"prompts": 7, "steps": 3, "seeds": 2, "correct": share, "speed": {"mean": -0.5, "standard_error": 0.25}}
    presets = {
        "default": figures | {"margin": 0.15, "right_range": [1.1, 1.9], "replay": taught},
        "kernelbench": dict.fromkeys(figures)
        | {"margin": None, "right_range": None, "replay": {"prompts": 7, "correct": None, "speed": None}},
    }
    counts = {"evaluations": 99, "right": 60, "prompts": 9, "problems": 3, "group": 8, "repeated": 30, "caught": 4}
    study = counts | {"sources": [{"machine": "a processor"}], "presets": presets}
    text = generator.preset_study.section(study)
    assert "99 submissions" in text and "60 of them right" in text and "(a processor, CPU kernels" in text
    assert (
        "| `default` | 25 ± 5 % | 50 % | 25 ± 5 % | +0.25 ± 0.05 | -0.50 ± 0.25 | 0.25 ± 0.05 | +0.15 | 1.10 to 1.90 |"
        in text
    )
    assert "| `kernelbench` |  |  |  |  |  |  |  |  |" in text and "of each of 7 prompts, after 3 groups of 8" in text
    picture = generator.preset_study.picture(study)
    assert all(name in picture for name in presets) and "share of noise" in picture and "*noise*" in text
    assert text.endswith(
        "4 of these submissions had an integrity finding, for which no preset pays. Right kernels become faster most "
        "under `default`, by -0.50 ± 0.25 doublings. Groups without a gradient are fewest under `default`, 25 ± 5 %."
    )
    tied = figures | {"ties": {"mean": 1.0, "standard_error": 0.0}, "margin": 1.0, "right_range": [1.0, 1.0]}
    both = {name: tied | {"replay": taught} for name in ("kernelbench", "dr_kernel")}
    assert "Under `kernelbench` and `dr_kernel` all right kernels have one reward" in generator.preset_study.section(
        study | {"presets": presets | both}
    )
    few = study | {"repeated": 2}
    text = generator.preset_study.section(few)
    assert "| `default` | 25 ± 5 % | 50 % | 25 ± 5 % | +0.25 ± 0.05 | -0.50 ± 0.25 | +0.15 | 1.10 to 1.90 |" in text
    assert "noise" not in text and "share of noise" not in generator.preset_study.picture(few)
