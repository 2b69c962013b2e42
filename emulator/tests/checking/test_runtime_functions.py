"""Graphs and their nodes, copies of boxes, the driver, and what programs ask of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = Path(__file__).resolve().parent.parent / "several_gpus" / "graphs.cu"
SCHEDULES = (Schedule(), Schedule("one_ahead", 1), Schedule("priorities", 2))
MODES = ("capture", "captures", "nodes", "captured", "memory", "external", "boxes", "driver", "questions")


@pytest.fixture(scope="module")
def program(emulator_path: Path | None) -> MainProgram:
    return MainProgram.of_one_process(SOURCE, 2, emulator_path)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.policy}-{schedule.seed}")
@pytest.mark.parametrize("mode", MODES)
def test_a_right_program_ends_without_a_finding(program: MainProgram, mode: str, schedule: Schedule) -> None:
    ended = program.run(mode, "right", schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings, ended.printed) == (Outcome.OK, "", (), "")


@pytest.mark.parametrize(
    ("mode", "mistake", "accesses"),
    [
        ("capture", "event", {"st.global.u32", "ld.global.u32"}),
        ("nodes", "edge", {"st.global.u32", "ld.global.u32"}),
        ("external", "event", {"st.global.u32", "ld.global.u32"}),
        ("driver", "event", {"st.global.u32", "cuMemcpyDtoH"}),
    ],
)
def test_work_that_nothing_orders_is_a_race(program: MainProgram, mode: str, mistake: str, accesses: set[str]) -> None:
    found = [each for each in program.run(mode, mistake).findings if each.finding_class == "unsynchronised"]
    assert accesses <= {side.what for each in found for side in (each.first, each.second) if side}


def test_memory_of_a_graph_has_no_content_when_it_is_allocated(program: MainProgram) -> None:
    (found,) = program.run("memory", "unfilled").findings
    assert "ld.global" in found.message and "which nobody has written" in found.message
