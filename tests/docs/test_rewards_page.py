"""docs/rewards.md: its code runs, its tables leave nothing out, and its pictures are drawn."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from docs.generate import rewards as generator
from pkb_gym import rewards
from pkb_gym.rewards import component
from pkb_gym.rewards.presets import PRESETS
from pkb_gym.rewards.recipes import RECIPES
from tests.docs.pages import DOCS

PAGE = (DOCS / "rewards.md").read_text(encoding="utf-8")


def test_the_code_runs():
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/rewards.md", "exec"), {})


def test_every_preset_and_recipe_is_listed():
    assert all(f"| `{name}` |" in generator.preset_table() for name in PRESETS)
    assert all(f"`{name}`" in PAGE for name in RECIPES)


def test_every_class_of_the_package_is_listed_or_an_operator():
    own = {kind for kind in _below(rewards.Component) if kind.__module__.startswith("pkb_gym.")}
    operators = {kind for kind in own if kind.__module__ == component.__name__}
    assert own == {*generator.components(), *operators}
    assert all(f"[`{one.__name__}`]" in generator.component_table() for one in generator.components())


def test_every_credit_and_comparison_of_a_recipe_is_listed():
    shown = generator.credit_table()
    for recipe in RECIPES.values():
        for step in (recipe.returns, recipe.advantages):
            assert f"`{getattr(step, 'func', step).__name__}`" in shown


@pytest.mark.parametrize("draw", [generator.default_picture, generator.episode_picture, generator.speed_picture])
def test_pictures_are_well_formed(draw):
    words = [text.text for text in ET.fromstring(draw()).iter("{http://www.w3.org/2000/svg}text")]
    assert len(words) > 20


def _below(kind: type) -> set[type]:
    return {below for child in kind.__subclasses__() for below in {child, *_below(child)}}
