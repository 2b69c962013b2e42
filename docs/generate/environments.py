"""Tables of docs/environments.md, from the docstrings of the environments and the spaces themselves."""

from __future__ import annotations

import inspect
import re

from gymnasium import spaces

from docs.generate.markdown import first_line, table
from pkb_gym.envs.env import PKBEnv
from pkb_gym.envs.samplers import SAMPLERS
from pkb_gym.envs.spaces import observation_space


def arguments() -> str:
    """The table of arguments of one environment."""
    return _section("Arguments").partition("```\n\n")[2]


def observation() -> str:
    """The entries of an observation with their meanings, and the space of each."""
    rows = [(f"`{name}`", _space(space)) for name, space in observation_space().spaces.items()]
    return f"{_section('Observation Space')}\n\n{table(('entry', 'space'), rows)}"


def samplers() -> str:
    """The names that the argument `sampler` takes."""
    rows = [(f'`"{name}"`', f"`{kind.__name__}`", first_line(kind)) for name, kind in SAMPLERS.items()]
    return table(("name", "class", "draws"), rows)


def _section(title: str) -> str:
    sections = re.split(r"^## (.+)\n", inspect.getdoc(PKBEnv) or "", flags=re.MULTILINE)
    return sections[sections.index(title) + 1].strip()


def _space(space: spaces.Space[object]) -> str:
    if isinstance(space, spaces.Discrete):
        return f"`Discrete({space.n})`"
    if isinstance(space, spaces.Box):
        low, high = space.low.flat[0], space.high.flat[0]
        return f"`Box({low:g}, {high:g}, {space.shape}, {space.dtype})`"
    return f"`{space!r}`"
