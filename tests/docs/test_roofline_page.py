"""docs/roofline.md has the limits that the code has."""

from __future__ import annotations

from pkb_gym.engine.hardware.limits import GPU_LIMITS
from pkb_gym.engine.problem.cost import MIN_LINK_BITS
from pkb_gym.engine.stages.integrity import CLOCK_ERROR_US, MEASURED_SLACK
from pkb_gym.engine.stages.roofline import BOUND_TRIALS
from tests.docs.pages import DOCS

PAGE = (DOCS / "roofline.md").read_text(encoding="utf-8")


def test_the_table_has_every_gpu():
    rows = [line for line in PAGE.splitlines() if line.startswith("| NVIDIA")]
    expected = []
    for (name,), limits in GPU_LIMITS.items():
        clock = limits.source.rpartition("(")[2].split()[0]
        matrix = limits.matrix_flops_per_s / 1e12
        memory, links = limits.memory[-1].bytes_per_s / 1e12, limits.link_bytes_per_s / 1e9
        expected.append(f"| {name} | {clock} | {matrix:.0f} | {memory:.2f} | {links:.0f} |")
    assert rows == expected


def test_the_constants_are_those_of_the_code():
    assert f"A number takes {MIN_LINK_BITS} bits" in PAGE
    assert (CLOCK_ERROR_US, MEASURED_SLACK, BOUND_TRIALS) == (1.0, 2.0, 8)
    for words in ("One microsecond a call", "On the CPU, half of the bound", "the first eight"):
        assert words in PAGE
