"""Random PTX programs leave the same memory as on a GPU, bit for bit: digests of its results are kept."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from emulator.tests.random_ptx.program import PRELUDE, Program, all_forms, as_ptxas_takes, make_program
from emulator.tests.whole_tables import IS_WHOLE
from emulator.tests.worlds import EmulatorLibrary
from rank_emulator import Outcome

KEPT = json.loads(Path(__file__).with_name("random_ptx").joinpath("digests.json").read_text(encoding="utf-8"))
ALIKE = sorted(set(map(int, KEPT["digests"])) - set(KEPT["unlike"]))
EACH = 1 if IS_WHOLE else 6
"""One program in so many is run; `make emulated` runs all."""


def run(emulator: EmulatorLibrary, program: Program, ptx: str | None = None) -> np.ndarray:
    """The content of memory afterwards."""
    ended = emulator.run(
        PRELUDE + (ptx or program.ptx),
        threads=program.threads,
        blocks=program.blocks,
        kernel=program.kernel,
        fill=lambda _: program.memory,
    )
    assert ended.outcome == Outcome.OK, ended.message
    return ended.segments[0][: len(program.memory)]


def digest(program: Program, memory: np.ndarray) -> str:
    """A digest of all exact results in memory after a run; bound to the program's text and inputs."""
    cells = program.cells(memory).copy()
    for slot in program.slots:
        if slot.form.bound:
            cells[list(slot.result_cells)] = 0
    content = hashlib.sha256(program.ptx.encode())
    for part in (program.memory, cells, program.scratch(memory)):
        content.update(np.ascontiguousarray(part).tobytes())
    return content.hexdigest()[:16]


def test_every_form_is_one_that_the_emulator_knows(emulator: EmulatorLibrary):
    """All of them in a few programs without branches."""
    forms = all_forms()
    assert len(forms) > 1300
    for first in range(0, len(forms), 150):
        program = make_program(first, forms[first : first + 150])
        assert len(program.slots) == len(forms[first : first + 150]), "the trace is full"
        run(emulator, program)


def test_programs_leave_in_memory_what_a_gpu_left(emulator: EmulatorLibrary):
    """All exact results of a program, its scratch memory, its text and inputs are in its digest."""
    assert len(ALIKE) > 1800
    programs = [make_program(seed) for seed in ALIKE[::EACH]]
    unlike = [program.seed for program in programs if digest(program, run(emulator, program)) != digest_of(program)]
    assert unlike == []


def digest_of(program: Program) -> str:
    return KEPT["digests"][str(program.seed)]


@pytest.mark.parametrize("seed", [2, 8, 30])
def test_one_wrong_instruction_is_seen(emulator: EmulatorLibrary, seed: int):
    program = make_program(seed)
    texts = [slot.text for slot in program.slots if slot.text.startswith(("min.", "max."))]
    swapped = {"min.": "max.", "max.": "min."}
    memories = (
        run(emulator, program, program.ptx.replace(f"\n{text}\n", f"\n{swapped[text[:4]]}{text[4:]}\n", 1))
        for text in texts
    )
    assert texts and any(digest(program, memory) != digest_of(program) for memory in memories)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("bfe.u32 %r11, %r4, 4294967255, %r6;", "bfe.u32 %r11, %r4, 215, %r6;"),
        ("bfe.u64 %d9, %d0, %r12, 405326849;", "bfe.u64 %d9, %d0, %r12, 1;"),
        ("bfi.b32 %r9, %r1, %r2, 300, %r3;", "bfi.b32 %r9, %r1, %r2, 44, %r3;"),
        ("bfe.u32 %r11, 4294967255, %r4, %r6;", "bfe.u32 %r11, 4294967255, %r4, %r6;"),
        ("W7: .branchtargets A7, B7;\nA7:", "W7: .branchtargets A7_, B7;\nA7_:"),
        ("W17: .branchtargets A17, B17;\nA17:", "W17: .branchtargets A17, B17;\nA17:"),
    ],
)
def test_a_form_is_changed_where_ptxas_refuses_it_alone(text: str, taken: str) -> None:
    assert as_ptxas_takes(text) == taken
