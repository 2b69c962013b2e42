"""Source lines of host code."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rank_emulator.checking.host_lines import _lines, line_of

SOURCE = """#include <atomic>
std::atomic<int> done{0};
extern "C" void wait() {
  while (!done) {}
}
"""


def test_what_a_function_of_the_system_does_in_place_has_the_line_that_calls_it(tmp_path: Path) -> None:
    source, library = tmp_path / "host.cpp", tmp_path / "host.so"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-O2", "-g1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    built = library.read_bytes()
    inside = [at for at, place in zip(*_lines(built), strict=True) if place and place[0].endswith("atomic_base.h")]
    assert inside and {line_of(built, at) for at in inside} == {(str(source), 4)}
