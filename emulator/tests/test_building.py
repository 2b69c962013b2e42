"""How the emulator is compiled."""

from __future__ import annotations

import re
from pathlib import Path

from rank_emulator import building
from rank_emulator.coverage import cuda_functions, cuda_functions_table
from rank_emulator.interface import load_emulator


def test_standard_headers_are_read_once_for_all_sources() -> None:
    """For most sources they took longer than the code itself."""
    headers = building.standard_headers(
        [b"#include <vector>\n#include <cuda.h>\n", b"#include <map>\n#include <vector>\n"]
    )
    assert headers == b"#include <map>\n#include <vector>\n", "those of other libraries have a suffix"
    assert b"#include <vector>\n" in building.contents()[building.STANDARD_HEADERS]


def test_they_are_precompiled_before_the_sources() -> None:
    contents = building.contents()
    line = building.command(contents, Path("/cuda"), Path("/ffi"))
    precompile, _, sources = line[2].partition(" && ")
    assert precompile.endswith(f"-x c++-header {building.STANDARD_HEADERS}")
    included = sources.count(f"-include {building.STANDARD_HEADERS}")
    assert included == len(building.units(contents)) > 0
    assert "-I/cuda/include" in sources and "-L/ffi/lib" in sources


def test_every_source_is_in_one_translation_unit() -> None:
    """Sources of a unit read their headers once, which halves the compiler's work."""
    contents = building.contents()
    units = building.units(contents)
    sources = [source for unit in units.values() for source in unit]
    assert sorted(sources) == sorted(name for name in contents if name.endswith(".cpp"))
    assert len(units) < len(sources) / 2
    assert units["detector_races"] == ["detector_races.cpp"] and "detector_clock.cpp" in units["detector"]
    for name in building.ALONE:
        assert units[name] == [f"{name}.cpp"]
    assert units["inner"] == [f"{name}.cpp" for name in building.INNER]
    optimised = {source for unit, members in units.items() if unit.startswith(building.FAST) for source in members}
    assert {"alu_half.cpp", "alu_integer.cpp", "executor_run.cpp", "detector_races.cpp"} < optimised
    assert not {"executor_call.cpp", "detector_report.cpp"} & optimised


def test_a_build_is_found_again(emulator_path: Path | None, compiled: Path) -> None:
    if emulator_path is not None:
        before = emulator_path.stat().st_mtime_ns
        assert building.build(compiled) == emulator_path and emulator_path.stat().st_mtime_ns == before


def test_functions_of_the_runtime_are_those_that_are_exported(emulator_path: Path | None) -> None:
    assert {"cudaMalloc", "cudaLaunchKernel", "cudaGraphInstantiate"} < cuda_functions()
    table = cuda_functions_table()
    assert all(table.count(f"`{name}`") == 1 for name in cuda_functions())
    if emulator_path is not None:
        library = load_emulator(str(emulator_path))
        emulated = {name: re.sub("^cu(da)?", lambda prefix: prefix[0].upper(), name) for name in cuda_functions()}
        lacking = [name for name, exported in emulated.items() if not hasattr(library, exported)]
        assert lacking == []
