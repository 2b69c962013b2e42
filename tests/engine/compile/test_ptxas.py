"""What nvcc's assembler says of each kernel, as records."""

from __future__ import annotations

from pkb_gym.engine.compile.ptxas import KernelUsage, read_ptxas

PTXAS = """\
ptxas info    : 24 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function '_Z5firstPf' for 'sm_90a'
ptxas info    : Function properties for _Z5firstPf
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 48 bytes cumulative stack size, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 15.066 ms
ptxas info    : Function properties for _Z10not_inlinev
    64 bytes stack frame, 64 bytes spill stores, 64 bytes spill loads
kernel.cu(3): warning #177-D: variable "unused" was declared but never referenced
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in '_Z6secondv'
ptxas info    : Compiling entry function '_Z6secondv' for 'sm_90a'
ptxas info    : Function properties for _Z6secondv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas warning : Stack size for entry function '_Z6secondv' cannot be statically determined
"""


def test_reports_of_ptxas_become_records_and_the_rest_stays() -> None:
    kernels, rest = read_ptxas(PTXAS)
    assert kernels == [
        KernelUsage("_Z5firstPf", 255, 1024, 48, 4, 8, 2),
        KernelUsage("_Z6secondv", 8, 0, 0, 0, 0, 0),
    ]
    lines = rest.splitlines()
    assert len(lines) == 3, "the functions' properties are gone, those of what was not inlined too"
    assert all(any(word in line for line in lines) for word in ("#177-D", "C7510", "statically determined"))


def test_a_source_that_writes_such_lines_gets_no_numbers_that_cannot_be_shown() -> None:
    """By `#line`, whose names hold line breaks: numbers of 900 digits became an OverflowError of the environment."""
    number = "9" * 900
    forged = f"""\
ptxas info    : Compiling entry function 'k' for 'sm_90a'
    {number} bytes stack frame, {number} bytes spill stores, {number} bytes spill loads
ptxas info    : Used 8 registers, used {number} barriers, {number} bytes cumulative stack size, {number} bytes smem
ptxas info    : Used {number} registers
"""
    kernels, rest = read_ptxas(forged)
    assert kernels == [KernelUsage("k", 8)] and f"    {number} bytes stack frame" in f"\n    {rest}"
