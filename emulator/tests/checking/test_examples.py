"""Examples: right as they are, and found with the mistake that their kind is known for, by the README's command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from emulator.tests.whole_tables import whole
from rank_emulator.checking.command import main

FOLDER = Path(__file__).parents[2] / "examples"
SAMPLE = ("nvshmem_put_signal",)
"""Examples that are checked without PKB_TEST_EMULATED."""

MISTAKES = {
    "one_shot": ("unsynchronised", "rank 0's call ends before rank 1 is done with its tensor"),
    "two_shot": ("weak_order", "use st.release.sys"),
    "ll": ("wrong_output", "call 2: "),
    "packets": ("deadlock", "polls scratch packets of rank"),
    "ring": ("unsynchronised", "`slots`["),
    "dispatch": ("unsynchronised", "`tokens`["),
    "copy_engine": ("unsynchronised", "read by `cudaMemcpyAsync`"),
    "gemm_reduce_scatter": ("unsynchronised", "execute fence.proxy.async after the first"),
    "halo": ("unsynchronised", "allocation memory"),
    "jacobi": ("unsynchronised", "by `cudaMemcpyAsync`"),
    "nvshmem_put_signal": ("weak_order", "`nvshmem_malloc`["),
    "nccl_lsa": ("weak_order", "use st.release.sys"),
}
"""Kind of the finding of each example's mistake, and words of its message."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SAMPLE else whole) for name in MISTAKES])
def test_right_passes_and_the_mistake_is_found(
    name: str, emulator_path: Path | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    command = [str(FOLDER / f"{name}.cu"), "--emulator", str(emulator_path), "--json", "-"]
    assert main(command) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert main([*command, "-DMISTAKE"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    kind, words = MISTAKES[name]
    assert any(each["kind"] == kind and words in each["message"] for each in problems), problems


def test_each_example_says_what_its_mistake_is() -> None:
    sources = sorted(FOLDER.glob("*.cu"))
    assert {source.stem for source in sources} == set(MISTAKES)
    for source in sources:
        text = source.read_text()
        assert re.match(r"// .*\n(// .*\n)*// check-ranks:.*\n(// check-ranks:.*\n)*// MISTAKE: ", text), source.name
        assert re.search(r"^#ifn?def MISTAKE$", text, re.MULTILINE), source.name
