"""Declarations of programs: what nvcc is given, and what is refused before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rank_emulator.checking import Program, UsageError, default_call, parse_buffers
from rank_emulator.checking.programs import compile_program, usable_flags, wrapper_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.cu"
    path.write_text("void f() {}\n")
    return path


def test_options_that_choose_a_gpu_are_left_out() -> None:
    given = ["-O2", "-arch=sm_80", "-gencode", "arch=compute_90,code=sm_90", "-Iinclude", "--gpu-architecture=sm_90"]
    assert usable_flags(given) == ["-O2", "-Iinclude"]


def test_options_of_build_lines_for_gpus_do_no_harm() -> None:
    """Those of public programs name libraries that the emulator has."""
    given = ["-L/opt/lib", "-lnvshmem_host", "-lnccl", "-l", "mpi_cxx", "-lcuda", "-lz", "-l", "m"]
    assert usable_flags(given) == ["-L/opt/lib", "-lz", "-lm"]


@pytest.mark.usefixtures("emulator")
def test_transfers_have_the_names_that_are_wrapped(tmp_path: Path) -> None:
    """With Ubuntu's g++, which defines _FORTIFY_SOURCE itself, polled memory was not lent to the system."""
    path = tmp_path / "program.cu"
    path.write_text("#include <unistd.h>\nchar to[8];\nint main(int n, char**) { return read(0, to, n) < 0; }\n")
    code = compile_program(Program((path,), flags=("-O2", "-Xcompiler=-D_FORTIFY_SOURCE=2")), 1)
    assert b"__read_chk" not in code


def test_the_call_sees_buffers_in_three_forms_and_a_constant_world_size(source: Path) -> None:
    buffers = parse_buffers("x:bf16[4],out:f32[4]")
    text = wrapper_source(Program((source,), "f<world_size>(x_table, out)", buffers=buffers), 3, [str(source)])
    assert "#include <cuda_bf16.h>" in text and f'#include "{source}"' in text
    assert "constexpr int world_size = 3;" in text
    assert "auto* const x = static_cast<__nv_bfloat16*>" in text
    assert "auto* const out_ranks = reinterpret_cast<float* const*>" in text
    assert "auto* const x_table = static_cast<__nv_bfloat16**>" in text
    assert '#line 1 "--call"' in text and "return f<world_size>(x_table, out);" in text


def test_an_entry_gets_all_ranks_pointers() -> None:
    assert default_call("f", parse_buffers("x:f32[1],out:f32[1]")) == "f(x_ranks, out_ranks, rank, world_size, stream)"
    assert default_call("f", ()) == "f(rank, world_size, stream)"


def test_what_cannot_be_a_program_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no source"):
        Program(())
    with pytest.raises(UsageError, match=r"missing.cu: no such file"):
        Program((tmp_path / "missing.cu",))
    with pytest.raises(UsageError, match="go with --call"):
        Program((source,), buffers=parse_buffers("x:f32[1]"))
    compiled = tmp_path / "kernel.o"
    compiled.write_bytes(b"")
    with pytest.raises(UsageError, match="name a header that declares the function by --include"):
        Program((compiled,), "f()")
    text = tmp_path / "kernel.txt"
    text.write_text("")
    with pytest.raises(UsageError, match="neither a source nor an object; the suffixes are"):
        Program((text,))
