"""Where ranks stood, in words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pkb_gym.engine.compile.source_lines import SourceLine
from pkb_gym.engine.stages import crash_places as module
from pkb_gym.engine.stages.crash_places import MAX_CALLS, crash_places, note_on, uncaught_exception

WAIT = (
    SourceLine("pkb/symm_cpu.h", 109, "pkb::Comm::wait_slowly"),
    SourceLine("pkb/symm_cpu.h", 62, "pkb::Comm::barrier"),
)
EXPORT = SourceLine("kernel.cpp", 40, "__tvm_ffi_solution")


def at(*numbers: int) -> list[SourceLine]:
    return [SourceLine("kernel.cpp", number, "solution") for number in numbers]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*at(5, 10), EXPORT], "rank 0 stood at kernel.cpp:5, called from kernel.cpp:10"),
        ([*WAIT, *at(11), EXPORT], "rank 0 stood at kernel.cpp:11, in pkb::Comm::barrier"),
        (at(5, 5, 5), "rank 0 stood at kernel.cpp:5"),
        (list(WAIT[:1]), "rank 0 stood at pkb/symm_cpu.h:109 (pkb::Comm::wait_slowly)"),
        ([], ""),
    ],
)
def test_a_place_in_words(lines: list[SourceLine], words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "source_lines", lambda binary, stacks: [lines for _ in stacks])
    assert crash_places(b"library", ["output"]) == words


def test_ranks_without_a_trace_are_left_out(monkeypatch: pytest.MonkeyPatch):
    def lines_of(binary: bytes, stacks: Sequence[Sequence[int]]) -> list[list[SourceLine]]:
        return [at(*stack) for stack in stacks]

    monkeypatch.setattr(module, "source_lines", lines_of)
    outputs = ["nothing", "pkb-trace 11 7:at", "pkb-trace 3 " + " ".join(f"{n:x}:at" for n in range(1, 20))]
    reported = crash_places(b"library", outputs).splitlines()
    assert reported[0] == "rank 1 stood at kernel.cpp:7"
    assert reported[1].count("kernel.cpp") == MAX_CALLS and len(reported) == 2
    assert crash_places(None, outputs) == "", "a Python source"


def test_an_exception_that_nobody_caught_is_named():
    """Tensors of unequal sizes in a collective were no more than a call of abort()."""
    written = (
        "before\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  96 vs 3072\nTrace\n"
    )
    assert uncaught_exception(["", written, written]) == "rank 1 did not catch gloo::EnforceNotMet: 96 vs 3072"
    assert uncaught_exception(["what():  nothing", ""]) == ""


def test_a_compiler_that_torch_may_not_start_is_named():
    inductor = "torch._inductor.exc.InductorError: PermissionError: [Errno 1] Operation not permitted"
    assert "torch.compile" in note_on(f"rank 0: Traceback\n{inductor}")
    assert note_on("PermissionError: [Errno 1] Operation not permitted") == ""
