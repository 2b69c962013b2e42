"""Parts of the comparison of random programs: what ptxas takes, kept digests, known differences."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.random_ptx import sides
from benchmarks.random_ptx.comparison import Difference
from benchmarks.random_ptx.kept import Kept, KeptError
from benchmarks.random_ptx.known_differences import cause
from benchmarks.random_ptx.program import as_ptxas_takes, make_program
from benchmarks.random_ptx.sides import assemble


def difference(
    text: str, results: tuple[str, str] = ("0", "1"), operands: tuple[str, ...] = (), *, both_nan: bool = False
) -> Difference:
    guarded = text.startswith("@")
    form = text.split(" ")[guarded]
    return Difference(0, form, text, 0, operands, (results,), both_nan)


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


def test_a_program_that_ptxas_refuses_leaves_the_others_their_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        text = Path(command[-1]).read_text()
        runs.append(text)
        if "program2(" in text:
            return SimpleNamespace(returncode=255, stdout="", stderr="Illegal branch target")
        Path(command[-2]).write_bytes(b"code")
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(sides, "find_toolkit", lambda: Path("/cuda"))
    monkeypatch.setattr(sides.subprocess, "run", run)
    found = assemble([make_program(seed) for seed in range(4)])
    assert found.modules == ((b"code", (0, 1)), (b"code", (3,)))
    assert found.refused == {2: "ptxas: Illegal branch target"}
    assert len(runs) == 5


def kept(digests: dict[int, str], unlike: set[int] | None = None) -> Kept:
    return Kept("2026-01-01", "c" * 12, "python -m benchmarks.emulated_random", digests, frozenset(unlike or ()))


def test_digests_of_a_further_run_join_those_kept(tmp_path: Path) -> None:
    before = kept({0: "a", 1: "b"}, {1})
    joined = before.joined(kept({1: "b", 2: "c", 3: "d"}))
    after = joined.with_emulated({0: "a", 1: "b", 2: "c", 3: "?"}, before)
    assert after.unlike == {3}
    after.save(tmp_path / "kept.json")
    assert Kept.load(tmp_path / "kept.json") == after


def test_digests_that_contradict_those_kept_are_refused() -> None:
    before = kept({0: "a", 1: "b"}, {1})
    with pytest.raises(KeptError, match=r"1 programs are not those kept: seeds \[0\]"):
        before.joined(kept({0: "x"}))
    with pytest.raises(KeptError, match=r"before that it does not now: \[0\]"):
        before.joined(kept({2: "c"})).with_emulated({0: "?", 1: "b", 2: "c"}, before)
    with pytest.raises(KeptError, match=r"did not run on the emulator: seeds \[2\]"):
        before.joined(kept({2: "c"})).with_emulated({0: "a", 1: "b"}, before)


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (difference("@%p9 testp.finite.f32 %p10, %f4;"), "guard"),
        (difference("testp.finite.f32 %p10, %f4;"), ""),
        (difference("@%p13 set.geu.f32.f64 %f5, %q11, %q6;"), "guard"),
        (difference("@%p13 set.geu.u32.f64 %r5, %q11, %q6;"), ""),
        (difference("cvt.rzi.u64.f16 %d12, %h6;"), "f16 to integers"),
        (difference("cvt.rni.s8.f16 %r12, %h6;"), ""),
        (difference("div.approx.f32 %f1, %f2, %f3;", ("ff800000", "ff7fffff")), "overflow"),
        (difference("div.approx.f32 %f1, %f2, %f3;", ("ff800000", "7f7ffffe")), ""),
        (difference("max.f16 %h1, %h2, %h3;", operands=("7e00", "7e00"), both_nan=True), "NaN of copies"),
        (difference("max.f16 %h1, %h2, %h3;", operands=("7e00", "fe00"), both_nan=True), ""),
        (difference("mov.u32 %r6, %ctaid.x;", ("eeeeeeee", "00000000")), "path"),
        (difference("mov.u32 %r6, %ctaid.x;", ("00000001", "00000000")), ""),
        (
            difference("@%p1 neg.f32 %f1, %f2;", ("7fffffff", "7fc00000"), ("3f800000", "7fffffff"), both_nan=True),
            "NaN that a guard keeps",
        ),
        (difference("@%p1 neg.f32 %f1, %f2;", ("7fffffff", "7fc00000"), ("3f800000", "7fc00000"), both_nan=True), ""),
        (difference("shl.b16 %s11, %s5, 67108864;"), "shift by a literal"),
        (difference("shl.b16 %s11, %s5, %r6;"), ""),
        (difference("add.rm.f64 %q6, %q9, %q11;", both_nan=True), "NaN of f64"),
        (difference("add.rm.f64 %q6, %q9, %q11;"), ""),
        (difference("mul.ftz.sat.f32 %f7, %f7, %f8;", ("00800000", "00000000")), "flushed"),
        (difference("mul.ftz.sat.f32 %f7, %f7, %f8;", ("00800001", "00000000")), ""),
        (difference("mul.sat.f32 %f7, %f7, %f8;", ("00800000", "00000000")), ""),
    ],
)
def test_a_cause_is_known_by_instruction_and_results(found: Difference, name: str) -> None:
    assert cause(found) == name
