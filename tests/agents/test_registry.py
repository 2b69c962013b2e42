"""Agents are found by name, and their options are read from words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pkb_gym.agents.evolve import EvolveOptions
from pkb_gym.agents.options import parse_options
from pkb_gym.agents.registry import AGENTS, default_label, open_agent, split_name
from pkb_gym.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("refrence", "no agent 'refrence'; there are reference, .* Did you mean 'reference'"),
        ("baseline", "Did you mean 'reference'"),
        ("openai", "agent openai needs model: write openai:MODEL"),
        ("replay: ", "agent replay needs path"),
        ("evolve:fast", "agent evolve takes nothing after its name, got 'fast'"),
    ],
)
def test_a_wrong_name_lists_the_choices(text, message):
    with pytest.raises(ConfigError, match=message):
        split_name(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mutation": "2"}, "agent evolve: no option 'mutation'; there are start, .* Did you mean 'mutations'"),
        ({"crossover": "2"}, "agent evolve: crossover='2': .*less than or equal to 1.*Probability that a child"),
        ({"initial": "many"}, "agent evolve: initial='many': .*valid integer"),
    ],
)
def test_a_wrong_option_lists_the_options(given, message):
    with pytest.raises(ConfigError, match=message):
        open_agent("evolve", given)


def test_options_are_read_from_words():
    assert parse_options("evolve", EvolveOptions, {"crossover": "0.25", "initial": "7"}) == EvolveOptions(
        crossover=0.25, initial=7
    )


def test_labels_leave_out_folders():
    """Tables are published; whose home a program lies in is nobody's business."""
    assert default_label("transformers:/home/me/models/tiny") == "transformers:tiny"
    assert default_label("command:/home/me/bin/coder --model x") == "command:coder"
    assert default_label("workspace:/home/me/bin/coder --model x") == "workspace:coder"
    assert default_label("openai:org/model") == "openai:org/model"


def test_help_lists_every_agent_and_imports_no_heavy_library():
    """`pkb run --help` took as long as torch takes to load."""
    code = (
        "import sys; from pkb_gym.cli.program import main; main(['run', '--help']); "
        "print(sorted({'torch', 'gymnasium', 'transformers', 'openai', 'numpy'} & set(sys.modules)))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.splitlines()[-1] == "[]"
    assert all(f"\n  {name}" in out for name in AGENTS)
