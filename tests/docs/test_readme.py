"""README.md: its example runs, its numbers hold, its commands exist."""

from __future__ import annotations

import os
import re

from pkb_gym.envs import evaluator_registry
from pkb_gym.problems.catalogue import catalogue
from tests.docs.pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(evaluator, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    monkeypatch.setitem(evaluator_registry._started, (os.getpid(), "local"), evaluator)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["info"]["feedback"].passed, names["info"]["feedback"].message
    assert names["reward"] > 0
    assert capsys.readouterr().out.startswith("# AllReduce\n")


def test_the_number_of_problems_holds():
    assert f"holds {len(catalogue())} of the benchmark's 87 problems" in README


def test_the_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test", "smoke"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
