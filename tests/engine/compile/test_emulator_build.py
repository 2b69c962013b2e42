"""How the emulator is compiled."""

from __future__ import annotations

import pytest

from pkb_gym.engine.compile import emulator
from pkb_gym.engine.compile.nvcc import nvcc_available


def test_standard_headers_are_read_once_for_all_sources() -> None:
    """For most sources they took longer than the code itself."""
    headers = emulator._standard_headers(
        [b"#include <vector>\n#include <cuda.h>\n", b"#include <map>\n#include <vector>\n"]
    )
    assert headers == b"#include <map>\n#include <vector>\n", "those of other libraries have a suffix"
    assert b"#include <vector>\n" in emulator._contents()[emulator.STANDARD_HEADERS]


@pytest.mark.skipif(not nvcc_available(), reason="compiled with headers of the CUDA toolkit")
def test_they_are_precompiled_before_the_sources() -> None:
    contents = emulator._contents()
    precompile, _, sources = emulator._command(contents)[2].partition(" && ")
    assert precompile.endswith(f"-x c++-header {emulator.STANDARD_HEADERS}")
    included = sources.count(f"-include {emulator.STANDARD_HEADERS}")
    assert included == sum(name.endswith(".cpp") for name in contents) > 0
