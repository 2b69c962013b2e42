"""README.md: its example runs, its numbers hold, its commands exist, its picture is well-formed."""

from __future__ import annotations

import os
import re
from xml.etree import ElementTree as ET

from pkb_gym.cli.demo import MISTAKES, PROBLEM, attempts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs import evaluator_registry
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.docs.pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(evaluator, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    monkeypatch.setitem(evaluator_registry._started, (os.getpid(), "local"), evaluator)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["info"]["feedback"].passed, names["info"]["feedback"].message
    turns = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(turns) == 2 and all(float(speedup) > 0 for _, speedup in turns)
    assert float(turns[0][0]) > 0  # the second submission of the same source adds nothing
    assert names["prompt"].startswith("# AllReduce\n")


def test_the_number_of_problems_holds():
    assert f"holds {len(catalogue())} of the benchmark's 87 problems" in README


def test_the_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_picture_is_an_svg_with_a_description():
    """Readers that see no picture get its text."""
    (picture,) = re.findall(r"^!\[[^]]+\]\((docs/[\w.]+)\)$", README, re.MULTILINE)
    root = ET.parse(ROOT / picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.findtext("{*}title") and root.findtext("{*}desc")


def test_the_message_is_the_evaluators(evaluator):
    """What the README quotes of a kernel without a barrier stands word for word in its message."""
    (_, mistake) = MISTAKES
    (quoted,) = re.findall(rf"^{mistake.name}: {mistake.expected}: (.+)$", README, re.MULTILINE)
    (wrong,) = [attempt.source for attempt in attempts() if attempt.mistake is mistake]
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
    message = evaluator.evaluate(find_problem(PROBLEM), wrong, config).message
    swapped = re.sub(r"rank ([01])", lambda rank: f"rank {1 - int(rank[1])}", quoted)
    assert message.splitlines()[0] in (quoted, swapped)
