"""Instructions of machine code, counted by what they are."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile import nvcc, sass
from pkb_gym.engine.compile.sass import count_in


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("LDG.E.128.CONSTANT", "loads"), ("LD.E", "loads"), ("LDG.E.64.STRONG.SYS", "system_loads"),
        ("STG.E.STRONG.GPU", "stores"), ("ST.E.STRONG.SYS", "system_stores"), ("REDG.E.ADD.STRONG.SYS", "atomics"),
        ("ATOMG.E.CAS.STRONG.GPU", "atomics"), ("ATOMS.CAST.SPIN", None), ("LDGSTS.E.BYPASS.128", "async_copies"),
        ("LDGDEPBAR", None), ("UBLKCP.S.G", "bulk_copies"), ("UBLKRED.G.S.ADD.F32.RN", "bulk_reductions"),
        ("UBLKPF.L2", None), ("UTMALDG.2D", "tensor_loads"), ("UTMASTG.2D", "tensor_stores"),
        ("UTMAREDG.2D.ADD", "tensor_reductions"), ("LDGMC.E.ADD.F32x4.RN.STRONG.SYS", "multimem"),
        ("LDL.LU", "local_loads"), ("STL.128", "local_stores"), ("HGMMA.64x64x16.F32.BF16", "matrix"),
        ("LDS.128", None), ("LDC.64", None), ("FFMA", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("predicate", ["", "@P0 ", "@!UP1 "])
def test_instructions_count_as_what_they_are(instruction: str, kind: str | None, predicate: str) -> None:
    text = f"\t\tFunction : _Z1kv\n        /*0a10*/{predicate:>20}{instruction} R2, desc[UR4][R2.64] ;   /* 0x0c00 */\n"
    ((name, counts),) = count_in(text)
    assert name == "_Z1kv"
    assert {field: count for field, count in counts.model_dump().items() if count} == ({kind: 1} if kind else {})


@pytest.mark.skipif(not nvcc.nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")
def test_without_a_disassembler_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_disassembler", lambda toolkit: None)
    assert sass.count_instructions(b"\x7fELF", nvcc.find_toolkit()) is None
    monkeypatch.undo()
    assert sass.count_instructions(b"no library", nvcc.find_toolkit()) is None
