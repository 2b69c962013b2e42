"""docs/first_half_hour.md: its quick commands, run again in their order, print what stands there, numbers aside."""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import DOCS


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_half_hour", DOCS / "first_half_hour.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def on_page() -> dict[str, list[str]]:
    """Command -> the lines below it."""
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", (DOCS / "first_half_hour.md").read_text(), re.M | re.S)
    return {command: text.splitlines() for command, text in blocks}


def test_the_page_has_the_steps_of_the_script(steps: ModuleType, on_page: dict[str, list[str]]) -> None:
    text = (DOCS / "first_half_hour.md").read_text()
    commands = [step.command for step in steps.STEPS if isinstance(step, steps.Step)]
    assert list(on_page) == commands
    assert [step.prose for step in steps.STEPS if step.prose not in text] == []
    assert all(step.text.rstrip() in text for step in steps.STEPS if isinstance(step, steps.NewFile))
    assert sum(not step.is_quick for step in steps.STEPS if isinstance(step, steps.Step)) <= 3
    for step in steps.STEPS:
        if isinstance(step, steps.Step):
            assert steps.comparable(step, on_page[step.command]), f"nothing of {step.command} is compared"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_commands_print_what_the_page_shows(
    steps: ModuleType, on_page: dict[str, list[str]], compiled_before: Path
) -> None:
    # The path of a socket has 107 characters at most, and that of pytest's folder may have more.
    with tempfile.TemporaryDirectory(prefix="pkb-", dir="/tmp") as folder:
        session = steps.Session(Path(folder))
        try:
            for step in steps.STEPS:
                if isinstance(step, steps.NewFile):
                    session.write(step)
                elif step.is_quick:
                    printed = session.run(step)
                    expected = steps.comparable(step, on_page[step.command])
                    assert steps.comparable(step, steps.trimmed(step, printed)) == expected, "\n".join(printed)
        finally:
            session.close()


def test_figures_are_not_compared(steps: ModuleType) -> None:
    step = steps.Step("", "a command", compared="time|rank")
    one = ["│ time  candidate 58.5 us, 34.8x [4.76, 133] ███░ 12 %   │", "other", "rank 1: -6.2e+32"]
    other = ["│ time  candidate 1.2 ms, 3x [2, 4] █░░░ 1.5 % │", "rank 0: 7"]
    assert steps.comparable(step, one) == steps.comparable(step, other)
    assert steps.trimmed(step, ["left", "out", *one]) == ["...", one[0], "...", one[2]]
    assert steps.comparable(step, ["rank 1: nan"]) != steps.comparable(step, ["rank 1: -6.2e+32"])
