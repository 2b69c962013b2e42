"""The order that NVSHMEM and NCCL's device API give by fences, quiet, signals and barriers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCES = {
    name: Path(__file__).with_name(f"{name}_order.cu").read_text(encoding="utf-8") for name in ("nvshmem", "nccl")
}
WRONG = r"^// wrong: (\w+): (.*)\n(?:CASE\((\w+)\)|template <bool right>\nvoid (\w+)\()"
CASES = [(library, *case) for library, text in SOURCES.items() for case in re.findall(WRONG, text, re.MULTILINE)]
SCHEDULES = (Schedule(), Schedule("one_ahead", 1), Schedule("late_stores", 2))


@pytest.fixture(scope="module")
def programs(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, MainProgram]:
    return {
        library: MainProgram.of(text, 2, emulator_path, tmp_path_factory.mktemp(library))
        for library, text in SOURCES.items()
    }


def test_every_case_is_taken() -> None:
    for library, text in SOURCES.items():
        taken = [case for case in CASES if case[0] == library]
        assert len(taken) == text.count("// wrong:") == len(re.findall(r"^  (?:KERNEL|HOST)\(", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("library", "kind", "words", "kernel", "host"), [pytest.param(*case, id="".join(case[3:])) for case in CASES]
)
def test_right_is_silent_and_wrong_is_found(
    programs: dict[str, MainProgram], library: str, kind: str, words: str, kernel: str, host: str
) -> None:
    for schedule in SCHEDULES:
        ended = programs[library].run(kernel or host, "right", schedule=schedule)
        assert (ended.outcome, ended.message, [each.message for each in ended.findings]) == (Outcome.OK, "", [])
    runs = [programs[library].run(kernel or host, "wrong", schedule=schedule) for schedule in SCHEDULES]
    found = [each for run in runs for each in run.findings]
    assert any(each.finding_class == kind and words in each.message for each in found), found
    for each in found:
        if kernel and each.kind == "race":  # both lines of the program
            assert each.message.count("called from program.cu") + each.message.count("(program.cu") >= 2
